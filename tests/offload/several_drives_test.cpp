// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <memory>

#include <catch2/catch.hpp>

#include "cpu_optim/isa.h"
#include "offload/state_reader.h"
#include "offload/tensor_optimizer.h"
#include "tests/offload/sample_commits.h"
#include "tests/offload/synthetic_training.h"
#include "tests/offload/tensor_script.h"
#include "tests/support/recording_backend.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using Catch::Matchers::Contains;

namespace {

std::filesystem::path drive(const TemporaryFolder& folder, std::size_t number) {
    auto path = std::filesystem::canonical(folder.path()) / ("drive" + std::to_string(number));
    std::filesystem::create_directory(path);
    return path;
}

std::vector<std::filesystem::path> drives_from(const TemporaryFolder& folder, std::size_t first,
                                               std::size_t end) {
    std::vector<std::filesystem::path> drives;
    for (; first < end; ++first)
        drives.push_back(drive(folder, first));
    return drives;
}

/// Rates that turn about at every commit, so that regions keep moving.
std::function<std::vector<double>()> restless(std::size_t drives) {
    return [drives, turn = std::size_t{0}]() mutable {
        std::vector<double> rates(drives, 1.0);
        rates[turn++ % drives] = 8.0;
        return rates;
    };
}

TensorOptimizerOptions options_on(const TemporaryFolder& folder, std::size_t drives,
                                  std::size_t chunk_bytes = std::size_t{64} << 10) {
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{16} << 20;
    options.chunk_bytes = chunk_bytes;
    options.isa = cpu_optim::supported_isas().back();
    options.nvme = drive(folder, 0);
    options.more_nvme = drives_from(folder, 1, drives);
    options.out = folder.path() / "out";
    options.io.drive_rates = restless(drives);
    return options;
}

/// Runs a client's script; what it leaves must be the bits of a run in memory.
TensorOptimizerStatistics run_script(const TensorOptimizerOptions& options) {
    const TensorScript script;
    auto model = script.start();
    TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
    const auto note = optimizer.recover();
    const auto outcome = script.run(optimizer, model, note ? note->iteration + 1 : 0);
    CHECK(outcome.error.empty());
    const bool same = snapshot(optimizer, model) == script.uninterrupted().back();
    CHECK(same);
    return optimizer.statistics();
}

std::string refusal(const TensorOptimizerOptions& options) {
    const TensorScript script;
    auto model = script.start();
    try {
        const TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
    } catch (const FolderRefused& refused) {
        return refused.what();
    }
    return "accepted";
}

SyntheticRun synthetic_on(const TemporaryFolder& folder, std::size_t drives) {
    SyntheticRun run;
    run.out = folder.path() / "out";
    run.nvme = drive(folder, 0);
    run.more_nvme = drives_from(folder, 1, drives);
    run.drive_rates = restless(drives);
    run.steps = 4;
    run.placement.commit_every = 1;
    return run;
}

}  // namespace

TEST_CASE("one hash whatever the drives, the chunk size and the backend", "[several_drives]") {
    for (const auto drives : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
        for (const auto chunk : {std::size_t{64} << 10, std::size_t{192} << 10}) {
            for (const auto backend : {nvme::BackendKind::automatic, nvme::BackendKind::threads}) {
                CAPTURE(drives, chunk, static_cast<int>(backend));
                const TemporaryFolder folder;
                auto options = options_on(folder, drives, chunk);
                options.io.every_drive.backend = backend;
                const auto found = run_script(options);
                REQUIRE(found.drives.size() == drives);
                CHECK((found.moved_regions > 0) == (drives > 1));
                double whole = 0;
                for (const auto& one : found.drives) {
                    CHECK(one.written_bytes > 0);
                    whole += one.share;
                }
                CHECK(whole == Approx(1));
            }
        }
    }
}

TEST_CASE("state without commits is divided over drives too", "[several_drives]") {
    const TemporaryFolder folder;
    auto options = options_on(folder, 3);
    options.out.clear();
    options.host_bytes = std::size_t{7} << 20;
    const TensorScript script;
    auto model = script.start();
    TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
    for (std::uint64_t iteration = 1; iteration <= TensorScript::iterations; ++iteration)
        script.iterate(optimizer, model, iteration);
    const bool same = snapshot(optimizer, model) == script.uninterrupted().back();
    CHECK(same);
    const auto found = optimizer.statistics();
    for (const auto& one : found.drives)
        CHECK(one.written_bytes > 0);
    CHECK(found.moved_regions == 0);  // one copy is written in place
    for (const auto& folder_of_drive : drives_from(folder, 0, 3))
        CHECK(std::filesystem::is_empty(folder_of_drive));
}

TEST_CASE("an engine of its own weights gives the same bits on several drives",
          "[several_drives]") {
    const auto expected = reference_synthetic(4, 0.05);
    for (const auto durability : {Durability::on, Durability::off}) {
        for (const auto drives : {std::size_t{2}, std::size_t{3}}) {
            for (const auto host : {std::size_t{32} << 20, std::size_t{1} << 30}) {
                CAPTURE(drives, host, static_cast<int>(durability));
                const TemporaryFolder folder;
                auto run = synthetic_on(folder, drives);
                run.placement.host_bytes = host;
                run.placement.chunk_bytes = std::size_t{64} << 10;
                run.placement.durability = durability;
                const auto outcome = run_synthetic(run);
                const bool same = outcome.masters == expected;
                CHECK(same);
                CHECK(outcome.statistics.drives.size() == drives);
                CHECK((outcome.statistics.moved_regions > 0) == (durability == Durability::on));
                // Another chunk size goes on, and every tile is whole for a reader.
                run.steps = 6;
                run.placement.chunk_bytes = std::size_t{256} << 10;
                const auto longer = run_synthetic(run);
                const bool longer_same = longer.masters == reference_synthetic(6, 0.05);
                CHECK(longer_same);
                StateReader reader(run.out, nvme::BackendKind::automatic);
                CHECK(reader.verify().damage.empty());
            }
        }
    }
}

TEST_CASE("drives are known again in any order, and a lost one is named", "[several_drives]") {
    const TemporaryFolder folder;
    const auto options = options_on(folder, 3);
    static_cast<void>(run_script(options));
    const auto manifest = options.out / "spillway.state" / "manifest.json";
    const auto before = file_text(manifest);
    auto other = options;
    std::swap(other.nvme, other.more_nvme[1]);
    CHECK(refusal(other) == "accepted");
    CHECK(file_text(manifest) == before);
    other = options;
    other.more_nvme.push_back(other.nvme);
    CHECK_THAT(refusal(other), Contains("is given twice"));
    std::filesystem::rename(drive(folder, 1), folder.path() / "elsewhere");
    CHECK_THAT(refusal(options), Contains("drive1"));
}

TEST_CASE("a run of one drive keeps the first format", "[several_drives]") {
    const TemporaryFolder folder;
    const auto options = options_on(folder, 1);
    static_cast<void>(run_script(options));
    const auto text = file_text(options.out / "spillway.state" / "manifest.json");
    CHECK_THAT(text, Contains("\"format_version\": 1"));
    CHECK_FALSE(Contains("more_extents").match(text));
}

TEST_CASE("a drive that fails is named, with the operation's place", "[several_drives]") {
    for (const auto error : {EIO, ENOSPC, EROFS}) {
        const TemporaryFolder folder;
        auto options = options_on(folder, 2);
        const auto disk = std::make_shared<RecordedDisk>();
        const auto bad = drive(folder, 1).string();
        disk->set_faults([bad, error](const RecordedOperation& operation) {
            const bool hit = operation.path.string().starts_with(bad) &&
                             operation.operation == nvme::IoOperation::write;
            return hit ? error : 0;
        });
        options.io.backend_factory = [&](std::size_t depth) {
            return std::make_unique<RecordingBackend>(disk, depth, 7);
        };
        const TensorScript script;
        auto model = script.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        const auto outcome = script.run(optimizer, model, 0);
        CHECK_THAT(outcome.error, Contains(bad) && Contains("extents.1") && Contains("offset"));
    }
}

TEST_CASE("what dead runs left on several drives is found on each and removed",
          "[several_drives]") {
    const TemporaryFolder folder;
    const auto options = options_on(folder, 2);
    static_cast<void>(run_script(options));
    CHECK(find_leftovers(drive(folder, 0)).empty());
    CHECK(find_leftovers(drive(folder, 1)).empty());
    std::filesystem::remove_all(options.out);
    for (const auto number : {std::size_t{0}, std::size_t{1}}) {
        const auto left = find_leftovers(drive(folder, number));
        REQUIRE(left.size() == 1);
        remove_leftovers(left);
        CHECK(find_leftovers(drive(folder, number)).empty());
    }
}
