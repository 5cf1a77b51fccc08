// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// What is left of engines that are made and destroyed, and what a long run takes more and more of.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/offload/synthetic_training.h"
#include "tests/offload/tensor_model.h"
#include "tests/support/holdings.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

constexpr std::ptrdiff_t mebibyte = std::ptrdiff_t{1} << 20;

/// A run whose state is on a drive and whose weights pass through a device of its own memory.
SyntheticRun small_run(const TemporaryFolder& folder, const std::string& name) {
    SyntheticRun run;
    run.model = synthetic_model(2);
    run.out = folder.path() / ("out." + name);
    run.nvme = folder.path();
    run.placement.device = "sim:64MiB@8GB/s";
    run.placement.host_bytes = std::size_t{14} << 20;
    run.placement.threads = 2;
    return run;
}

/// An engine that trains two steps, commits and goes.
void live_once_as_engine(const TemporaryFolder& folder) {
    auto run = small_run(folder, "once");
    std::filesystem::remove_all(run.out);
    run.steps = 2;
    static_cast<void>(run_synthetic(run));
    std::filesystem::remove_all(folder.path() / "spillway.extents");
}

/// An optimizer of a client's tensors, its state on the drive, left after one step.
void live_once_as_optimizer(const TemporaryFolder& folder) {
    auto model = client_model();
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{6} << 20;
    options.chunk_bytes = std::size_t{64} << 10;
    options.threads = 2;
    options.nvme = folder.path();
    TensorOptimizer optimizer(parameters_of(model),
                              {cpu_optim::AdamHyperParameters{}, cpu_optim::AdamHyperParameters{}},
                              options);
    std::vector<std::vector<std::byte>> gradients;
    for (std::size_t index = 0; index < model.size(); ++index) {
        gradients.push_back(gradient_bytes_of(model[index], index, 1));
        optimizer.give_gradient(static_cast<TensorId>(index),
                                {gradients[index].data(), model[index].gradient_type});
    }
    optimizer.begin_step({});
    optimizer.wait();
}

bool is_no_more(const Holdings& now, const Holdings& before) {
    return now.descriptors <= before.descriptors && now.threads <= before.threads &&
           now.locked_bytes <= before.locked_bytes;
}

/// When what the kernel lets go of late, as a closed ring's memory and a joined thread's entry, is
/// no more than `most`, and does not become less.
Holdings when_settled(const Holdings& most) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    auto last = most;
    for (;;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const Holdings now;
        if ((is_no_more(now, most) && is_no_more(last, now)) ||
            std::chrono::steady_clock::now() > until)
            return now;
        last = now;
    }
}

void check_nothing_is_left(const std::function<void()>& live_once) {
    constexpr int cycles = 50;
    for (int i = 0; i < cycles / 10; ++i)
        live_once();
    const auto before = when_settled(Holdings());
    for (int i = 0; i < cycles; ++i)
        live_once();
    const auto after = when_settled(before);
    CHECK(after.descriptors == before.descriptors);
    CHECK(after.threads == before.threads);
    CHECK(after.locked_bytes == before.locked_bytes);
    if (memory_is_own) {
        // Less than one small thing a cycle: what the allocator keeps varies.
        CHECK(after.mappings - before.mappings < cycles / 10);
        CHECK(after.resident_bytes - before.resident_bytes < 2 * mebibyte);
    }
}

}  // namespace

TEST_CASE("lifecycle: fifty engines leave no descriptor, thread, mapping or locked page behind") {
    const TemporaryFolder folder;
    check_nothing_is_left([&] { live_once_as_engine(folder); });
}

TEST_CASE(
    "lifecycle: fifty optimizers leave no descriptor, thread, mapping or locked page behind") {
    const TemporaryFolder folder;
    check_nothing_is_left([&] { live_once_as_optimizer(folder); });
}

TEST_CASE("lifecycle: three hundred steps with commits take no more memory than sixty") {
    const TemporaryFolder folder;
    auto run = small_run(folder, "long");
    run.steps = 300;
    run.placement.commit_every = 25;
    std::optional<Holdings> early;
    std::optional<Holdings> late;
    run.after_step = [&](std::uint64_t steps) {
        if (steps == 60)
            early.emplace();
        if (steps == 300)
            late.emplace();
    };
    static_cast<void>(run_synthetic(run));
    REQUIRE((early && late));
    CHECK(late->descriptors == early->descriptors);
    CHECK(late->threads == early->threads);
    CHECK(late->locked_bytes == early->locked_bytes);
    if (memory_is_own) {
        CHECK(late->mappings - early->mappings < 10);
        // A page a step would be 960 KiB.
        CHECK(late->resident_bytes - early->resident_bytes < mebibyte / 2);
    }
}
