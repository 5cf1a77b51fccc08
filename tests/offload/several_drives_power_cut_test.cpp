// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cerrno>
#include <memory>
#include <random>

#include <catch2/catch.hpp>

#include "cpu_optim/isa.h"
#include "offload/tensor_optimizer.h"
#include "tests/offload/tensor_script.h"
#include "tests/support/recording_backend.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

TensorOptimizerOptions two_drives(const TemporaryFolder& folder) {
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{12} << 20;
    options.chunk_bytes = std::size_t{64} << 10;
    options.isa = cpu_optim::supported_isas().back();
    options.nvme = folder.path() / "one";
    options.more_nvme = {folder.path() / "two"};
    options.out = folder.path() / "out";
    std::filesystem::create_directory(options.nvme);
    std::filesystem::create_directory(options.more_nvme.front());
    // Regions move after every commit.
    options.io.drive_rates = [turn = 0]() mutable {
        return ++turn % 2 == 0 ? std::vector{1.0, 8.0} : std::vector{8.0, 1.0};
    };
    return options;
}

struct Life {
    std::optional<std::uint64_t> durable;
    std::size_t operations = 0;
    std::uint64_t moved = 0;
};

/// One life of a run whose power goes at operation `cut`, over all drives.
Life live(TensorOptimizerOptions options, std::size_t cut, const FateChooser& fate) {
    const Watchdog watchdog(std::chrono::seconds(60));
    const auto disk = std::make_shared<RecordedDisk>();
    disk->fail_from(cut);
    options.io.backend_factory = [&](std::size_t depth) {
        return std::make_unique<RecordingBackend>(disk, depth, 7);
    };
    Life life;
    const TensorScript script;
    try {
        auto model = script.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        const auto note = optimizer.recover();
        life.durable = script.run(optimizer, model, note ? note->iteration + 1 : 0).durable;
        life.moved = optimizer.statistics().moved_regions;
    } catch (const std::exception&) {  // the power went while it was made or recovered
    }
    life.operations = disk->operations();
    disk->materialise(std::min(cut, life.operations), fate);
    return life;
}

}  // namespace

TEST_CASE("a power cut over two drives leaves a commit, while regions move between them",
          "[several_drives]") {
    const TensorScript script;
    const auto expected = script.uninterrupted();
    std::size_t operations = 0;
    {
        const TemporaryFolder folder;
        const auto whole = live(two_drives(folder), ~std::size_t{0}, drop_unflushed());
        CHECK(whole.durable == 4);
        CHECK(whole.moved > 0);
        operations = whole.operations;
    }
    REQUIRE(operations > 100);
    constexpr std::uint64_t seed = 77;
    std::mt19937_64 random(seed);
    for (std::size_t index = 0; index < 60; ++index) {
        const auto cut = static_cast<std::size_t>(random() % operations);
        CAPTURE(seed, index, cut);
        const TemporaryFolder folder;
        const auto options = two_drives(folder);
        const auto life =
            live(options, cut, index % 3 == 0 ? drop_unflushed() : seeded_fates(index));
        auto model = script.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        const auto note = optimizer.recover();
        if (life.durable)
            REQUIRE(note.has_value());
        const auto found = note ? note->iteration : 0;
        CHECK(found >= life.durable.value_or(0));
        const bool same = snapshot(optimizer, model) == expected[found];
        CHECK(same);
        CHECK(script.run(optimizer, model, note ? found + 1 : 0).error.empty());
        const bool same_end = snapshot(optimizer, model) == expected.back();
        CHECK(same_end);
    }
}
