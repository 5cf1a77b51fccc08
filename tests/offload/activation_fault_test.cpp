// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>

#include <catch2/catch.hpp>

#include "tests/offload/synthetic_training.h"
#include "tests/support/recording_backend.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::testing;

namespace {

constexpr std::uint64_t steps = 4;

/// Nothing but layers' inputs goes to the drive within a step.
SyntheticRun run_with_inputs(const TemporaryFolder& folder) {
    SyntheticRun run;
    run.model = synthetic_model(4);
    run.out = folder.path() / "out";
    run.nvme = folder.path() / "drive";
    std::filesystem::create_directory(run.nvme);
    run.steps = steps;
    run.placement.device = "sim:64MiB";
    run.placement.chunk_bytes = std::size_t{64} << 10;
    run.placement.commit_every = 1;
    run.placement.input_bytes = (std::size_t{1} << 20) + 12;
    return run;
}

bool is_of_inputs(const RecordedOperation& operation) {
    return operation.path.filename().string().starts_with("spillway.scratch.");
}

/// Trains on a disk of which number `victim` of the operations of one kind on layers' inputs
/// fails; what the run had written by then is on the real files afterwards. What was thrown.
std::string train_until(SyntheticRun run, nvme::IoOperation kind, std::size_t victim, int error) {
    const auto disk = std::make_shared<RecordedDisk>();
    disk->set_faults([=, number = std::size_t{0}](const RecordedOperation& operation) mutable {
        return operation.operation == kind && is_of_inputs(operation) && number++ == victim ? error
                                                                                            : 0;
    });
    run.placement.backend_factory = [&](std::size_t depth) {
        return std::make_unique<RecordingBackend>(disk, depth);
    };
    std::string text;
    try {
        static_cast<void>(run_synthetic(run));
    } catch (const std::system_error& failure) {
        CHECK(failure.code().value() == error);
        text = failure.what();
    }
    disk->materialise(disk->operations(), keep_unflushed());
    return text;
}

}  // namespace

TEST_CASE("layers' inputs: a drive that fails them costs what follows the last commit",
          "[activation_fault]") {
    const TemporaryFolder whole;
    const auto undisturbed = run_synthetic(run_with_inputs(whole));
    CHECK(undisturbed.wrong_inputs == 0);
    CHECK(undisturbed.masters == [] {
        const TemporaryFolder folder;
        auto run = run_with_inputs(folder);
        run.placement.input_bytes = 0;
        return run_synthetic(run).masters;
    }());
    // In each step four units' inputs are written and read in three pieces each.
    constexpr std::size_t of_a_step = 12;
    for (const auto kind : {nvme::IoOperation::write, nvme::IoOperation::read}) {
        for (const std::size_t step : {0U, 2U, 3U}) {
            const auto error = step == 0 ? ENOSPC : EIO;
            CAPTURE(static_cast<int>(kind), step, error);
            const TemporaryFolder folder;
            const auto run = run_with_inputs(folder);
            const auto said = train_until(run, kind, step * of_a_step + 5, error);
            CHECK_THAT(said, Catch::Contains(run.nvme.string()) && Catch::Contains("offset"));
            for (const auto& entry : std::filesystem::recursive_directory_iterator(run.nvme))
                CHECK_FALSE(entry.path().filename().string().starts_with("spillway.scratch."));
            const auto resumed = run_synthetic(run);
            // The commit before may have been under way.
            CHECK((resumed.resumed_from == step || resumed.resumed_from == step - 1));
            CHECK(resumed.masters == undisturbed.masters);
            CHECK(resumed.wrong_inputs == 0);
        }
    }
}
