// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/sim_device.h"

#include <cmath>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "cuda/byte_count.h"
#include "cuda/sim_core.h"
#include "cuda/sim_stream.h"

namespace spillway::cuda {
namespace {

class SimDevice final : public Device {
  public:
    explicit SimDevice(const SimOptions& options) : core_(std::make_shared<SimCore>(options)) {}

    std::string name() const override { return core_->options.name; }
    MemoryKind memory_kind() const noexcept override { return MemoryKind::device; }
    std::size_t capacity_bytes() const noexcept override { return core_->memory.capacity_bytes(); }
    std::size_t free_bytes() const noexcept override { return core_->memory.free_bytes(); }
    double link_bytes_per_s() const noexcept override { return core_->options.link_bytes_per_s; }

    DeviceBuffer allocate(std::size_t bytes) override {
        if (bytes == 0)
            return {};
        return {*this, core_->memory.allocate(bytes), bytes};
    }

    std::unique_ptr<Stream> create_stream(std::string_view name) override {
        return std::make_unique<SimStream>(name, core_);
    }

    DeviceStatistics statistics() const override {
        DeviceStatistics statistics = core_->counters.snapshot();
        statistics.peak_bytes = core_->memory.peak_bytes();
        return statistics;
    }

  private:
    void deallocate(std::byte* data, std::size_t) noexcept override {
        core_->memory.deallocate(data);
    }

    const std::shared_ptr<SimCore> core_;
};

void check_duration_or_rate(std::string_view name, double value) {
    if (!std::isfinite(value) || value < 0)
        throw std::invalid_argument(fmt::format(
            "simulated device: {} is {}, but must be finite and not negative", name, value));
}

std::string default_name(const SimOptions& options) {
    std::string name = "sim:" + format_byte_count(options.capacity_bytes);
    // A rate is printed in whole bytes, and a slower one than a byte as that.
    if (options.link_bytes_per_s > 0)
        name += fmt::format(
            "@{}/s",
            format_byte_count(static_cast<std::uint64_t>(std::ceil(options.link_bytes_per_s))));
    return name;
}

}  // namespace

std::unique_ptr<Device> make_sim_device(const SimOptions& options) {
    if (options.capacity_bytes < page_bytes)
        throw std::invalid_argument(
            fmt::format("simulated device: capacity_bytes is {}, but one page of {} is needed",
                        options.capacity_bytes, page_bytes));
    check_duration_or_rate("link_bytes_per_s", options.link_bytes_per_s);
    check_duration_or_rate("max_random_delay_s", options.max_random_delay_s);
    SimOptions named = options;
    if (named.name.empty())
        named.name = default_name(options);
    try {
        return std::make_unique<SimDevice>(named);
    } catch (const std::system_error& error) {
        throw std::invalid_argument(
            fmt::format("device '{}': the host cannot back it: {}", named.name, error.what()));
    }
}

}  // namespace spillway::cuda
