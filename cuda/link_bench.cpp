// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/link_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>

#include <fmt/format.h>

#include "cuda/host_mapping.h"

namespace spillway::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array all_traffic{LinkTraffic::host_to_device, LinkTraffic::device_to_host,
                                 LinkTraffic::both_ways};

void check(const Device& device, const LinkBenchOptions& options) {
    if (device.memory_kind() == MemoryKind::host)
        throw std::invalid_argument(
            fmt::format("device {} computes in host memory: there is no link to measure; take a "
                        "'cuda:N' or 'sim:BYTES@RATE'",
                        device.name()));
    if (options.bytes == 0 || options.passes == 0 || options.blocks.empty())
        throw std::invalid_argument("a link is measured with at least one byte, block and pass");
    for (const auto block : options.blocks)
        if (block == 0 || block > options.bytes)
            throw std::invalid_argument(
                fmt::format("blocks of {} bytes: a pass moves {}, and a block is 1 to that", block,
                            options.bytes));
}

/// What goes up, where it lies on the device, and where it comes down: each way has its own run of
/// device memory, so that both may go at once.
class Link {
  public:
    Link(Device& device, std::size_t bytes)
        : bytes_(bytes),
          sent_(round_up_to_page(bytes)),
          received_(round_up_to_page(bytes)),
          up_memory_(device.allocate(bytes)),
          down_memory_(device.allocate(bytes)),
          up_(device.create_stream("up")),
          down_(device.create_stream("down")) {
        for (std::size_t i = 0; i < bytes; ++i)
            sent_.data()[i] = byte_at(i);
        std::memset(received_.data(), 0, bytes);
        // What comes down later is what was sent here.
        down_->copy_to_device(down_memory_.data(), sent_.data(), bytes);
        down_->synchronize();
    }

    /// Empty where the device gains nothing by it.
    void lock(Device& device) {
        for (const auto* memory : {&sent_, &received_})
            locked_.push_back(device.register_host(memory->data(), memory->size_bytes()));
    }
    [[nodiscard]] bool is_locked() const {
        return std::any_of(locked_.begin(), locked_.end(),
                           [](const auto& one) { return one->page_locked_bytes() > 0; });
    }

    /// Bytes a second.
    double pass(LinkTraffic traffic, std::size_t block) {
        const bool goes_up = traffic != LinkTraffic::device_to_host;
        const bool goes_down = traffic != LinkTraffic::host_to_device;
        const auto began = Clock::now();
        for (std::size_t at = 0; at < bytes_; at += block) {
            const auto length = std::min(block, bytes_ - at);
            if (goes_up)
                up_->copy_to_device(up_memory_.data() + at, sent_.data() + at, length);
            if (goes_down)
                down_->copy_to_host(received_.data() + at, down_memory_.data() + at, length);
        }
        up_->synchronize();
        down_->synchronize();
        const std::chrono::duration<double> took = Clock::now() - began;
        return static_cast<double>(bytes_) * (goes_up && goes_down ? 2 : 1) / took.count();
    }

    /// Both ways moved the right bytes.
    void verify() {
        require_sent("down");
        down_->copy_to_host(received_.data(), up_memory_.data(), bytes_);
        down_->synchronize();
        require_sent("up");
    }

  private:
    static std::byte byte_at(std::size_t i) noexcept {
        return static_cast<std::byte>((i * 31 + i / 251) & 0xFF);
    }

    void require_sent(const char* way) {
        const auto [wrong, right] =
            std::mismatch(received_.data(), received_.data() + bytes_, sent_.data());
        if (wrong != received_.data() + bytes_)
            throw std::runtime_error(
                fmt::format("the way {}: byte {} of {} came back as {:#x}, sent was {:#x}", way,
                            wrong - received_.data(), bytes_, static_cast<unsigned>(*wrong),
                            static_cast<unsigned>(*right)));
        std::memset(received_.data(), 0, bytes_);
    }

    const std::size_t bytes_;
    HostMapping sent_, received_;
    std::vector<std::unique_ptr<HostRegistration>> locked_;
    DeviceBuffer up_memory_, down_memory_;
    std::unique_ptr<Stream> up_, down_;
};

LinkBenchRow measure(Link& link, LinkTraffic traffic, std::size_t block,
                     const LinkBenchOptions& options) {
    std::vector<double> rates;
    static_cast<void>(link.pass(traffic, block));
    for (std::uint32_t i = 0; i < options.passes; ++i)
        rates.push_back(link.pass(traffic, block));
    std::sort(rates.begin(), rates.end());
    return {.traffic = traffic,
            .pages = link.is_locked() ? HostPages::locked : HostPages::pageable,
            .block_bytes = block,
            .bytes_per_s = rates[rates.size() / 2],
            .least_bytes_per_s = rates.front(),
            .most_bytes_per_s = rates.back()};
}

void measure_all(Link& link, const LinkBenchOptions& options, LinkBenchResult& result) {
    for (const auto traffic : all_traffic)
        for (const auto block : options.blocks) {
            if (options.stop()) {
                result.interrupted = true;
                return;
            }
            result.rows.push_back(measure(link, traffic, block, options));
        }
    link.verify();
    result.verified_bytes += 2 * options.bytes;
}

}  // namespace

std::string_view name_of(LinkTraffic traffic) noexcept {
    switch (traffic) {
        case LinkTraffic::host_to_device:
            return "host_to_device";
        case LinkTraffic::device_to_host:
            return "device_to_host";
        case LinkTraffic::both_ways:
            return "both_ways";
    }
    return "";
}

std::string_view name_of(HostPages pages) noexcept {
    return pages == HostPages::locked ? "locked" : "pageable";
}

std::size_t link_bench_device_bytes(const LinkBenchOptions& options) noexcept {
    return 2 * round_up_to_page(options.bytes);
}

LinkBenchResult measure_link(Device& device, const LinkBenchOptions& options) {
    check(device, options);
    Link link(device, options.bytes);
    LinkBenchResult result;
    measure_all(link, options, result);
    link.lock(device);
    if (link.is_locked() && !result.interrupted)
        measure_all(link, options, result);
    return result;
}

}  // namespace spillway::cuda
