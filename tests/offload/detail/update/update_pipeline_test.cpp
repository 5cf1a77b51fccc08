// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/update_pipeline.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/forwarding_backend.h"
#include "offload/detail/drives/drive_queues.h"
#include "offload/tensor_optimizer.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

constexpr std::size_t tiles = 48;
constexpr std::size_t elements = tiles * tile_elements;

/// Lets one drive's reads wait until another has been asked for `needed` of them.
class Gate {
  public:
    explicit Gate(std::size_t needed) : needed_(needed) {}

    void count() {
        const std::lock_guard lock(mutex_);
        if (++counted_ == needed_)
            open_.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex_);
        const bool opened = open_.wait_for(lock, std::chrono::seconds(gave_up_ ? 0 : 30),
                                           [this] { return counted_ >= needed_; });
        gave_up_ |= !opened;
    }
    [[nodiscard]] bool gave_up() {
        const std::lock_guard lock(mutex_);
        return gave_up_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable open_;
    std::size_t needed_;
    std::size_t counted_ = 0;
    bool gave_up_ = false;
};

/// Sums what a drive moves by whether its memory had been introduced.
struct Moved {
    std::mutex mutex;
    std::size_t introduced_read_bytes = 0;
    std::size_t introduced_written_bytes = 0;
    std::size_t other_read_bytes = 0;
};

class IntroducedMemory final : public nvme::ForwardingBackend {
  public:
    IntroducedMemory(std::unique_ptr<nvme::IoBackend> inner, Moved& moved)
        : ForwardingBackend(std::move(inner)), moved_(moved) {}

    std::vector<std::string> use_fixed(const nvme::FixedResources& fixed) override {
        pieces_ = fixed.memory;
        return {"the memory is not introduced"};
    }
    std::size_t submit(std::span<const nvme::BackendOperation> operations) override {
        const auto taken = ForwardingBackend::submit(operations);
        const std::lock_guard lock(moved_.mutex);
        for (const auto& operation : operations.first(taken))
            count(operation);
        return taken;
    }

  private:
    void count(const nvme::BackendOperation& operation) {
        const auto* const begin = operation.data;
        const auto* const end = begin + operation.length_bytes;
        const bool inside = std::ranges::any_of(pieces_, [&](std::span<const std::byte> piece) {
            return std::less_equal<>()(piece.data(), begin) &&
                   std::less_equal<>()(end, piece.data() + piece.size());
        });
        if (operation.operation == nvme::IoOperation::read)
            (inside ? moved_.introduced_read_bytes : moved_.other_read_bytes) +=
                operation.length_bytes;
        else if (inside)
            moved_.introduced_written_bytes += operation.length_bytes;
    }

    Moved& moved_;
    std::vector<std::span<std::byte>> pieces_;
};

std::vector<float> ramp(float slope) {
    std::vector<float> values(elements);
    for (std::size_t i = 0; i < elements; ++i)
        values[i] = slope * static_cast<float>(i % 1000);
    return values;
}

TensorOptimizerOptions on_two_drives(const TemporaryFolder& folder) {
    TensorOptimizerOptions options;
    options.chunk_bytes = tile_elements * sizeof(float);
    for (const auto* const name : {"fast", "slow"})
        std::filesystem::create_directory(folder.path() / name);
    options.nvme = folder.path() / "fast";
    options.more_nvme = {folder.path() / "slow"};
    return options;
}

/// All of the state on the drives.
std::size_t least_host_bytes(const std::vector<Parameter>& parameters,
                             const std::vector<cpu_optim::HyperParameters>& groups,
                             TensorOptimizerOptions options) {
    options.host_bytes = 1;
    try {
        TensorOptimizer::check_room(parameters, groups, options);
    } catch (const PlanRefused& refused) {
        return refused.needed_bytes;
    }
    return 1;
}

std::vector<float> step_once(const TensorOptimizerOptions& given) {
    auto weights = ramp(0.25F);
    const auto gradient = ramp(-0.5F);
    const std::vector<Parameter> parameters{
        {.name = "w", .shape = {elements}, .type = ParameterType::fp32, .data = weights.data()}};
    const std::vector<cpu_optim::HyperParameters> groups(1);
    auto options = given;
    if (options.nvme.empty())
        options.host_bytes = std::size_t{64} << 20;
    else
        options.host_bytes = least_host_bytes(parameters, groups, options);
    TensorOptimizer optimizer(parameters, groups, options);
    optimizer.give_gradient(0, {gradient.data(), cpu_optim::GradientType::fp32});
    static_cast<void>(optimizer.begin_step({}));
    optimizer.wait();
    return weights;
}

}  // namespace

TEST_CASE("update pipeline: a drive that stands still holds up no other") {
    const TemporaryFolder folder;
    auto options = on_two_drives(folder);
    // More than all slots together hold: the fast drive's chunks must pass the slow one's.
    constexpr std::size_t fast_reads = 2 * 14;
    Gate gate(fast_reads);
    std::size_t made = 0;
    options.io.backend_factory = [&](std::size_t) {
        FakeScript script;
        const bool is_fast = made++ == 0;
        script.result = [&gate, is_fast](const nvme::BackendOperation& operation,
                                         std::size_t) -> std::optional<std::int64_t> {
            if (operation.operation != nvme::IoOperation::read)
                return std::nullopt;
            if (is_fast)
                gate.count();
            else
                gate.wait();
            return std::nullopt;
        };
        return std::make_unique<FakeBackend>(std::move(script), std::make_shared<FakeLog>());
    };
    const auto found = step_once(options);
    CHECK_FALSE(gate.gave_up());
    CHECK(found == step_once({}));
}

TEST_CASE("update pipeline: all that an update moves was introduced to its drive") {
    const TemporaryFolder folder;
    auto options = on_two_drives(folder);
    Moved moved;
    options.io.backend_factory = [&](std::size_t) {
        return std::make_unique<IntroducedMemory>(
            std::make_unique<FakeBackend>(FakeScript{}, std::make_shared<FakeLog>()), moved);
    };
    CHECK(step_once(options) == step_once({}));
    constexpr std::size_t state_bytes = elements * 2 * sizeof(float);
    CHECK(moved.introduced_read_bytes >= state_bytes);  // and what is read ahead
    CHECK(moved.introduced_written_bytes == state_bytes);
    CHECK(moved.other_read_bytes == 0);
}

TEST_CASE("update pipeline: what the drives do without is told once") {
    Moved moved;
    IoOptions options;
    options.backend_factory = [&](std::size_t) {
        return std::make_unique<IntroducedMemory>(
            std::make_unique<FakeBackend>(FakeScript{}, std::make_shared<FakeLog>()), moved);
    };
    const detail::DriveQueues queues(2, options);
    CHECK(queues.notes() == std::vector<std::string>{"the memory is not introduced"});
}
