// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/durable_run.h"

#include <catch2/catch.hpp>

#include "cpu_optim/isa.h"
#include "tests/nvme/mounts.h"
#include "tests/offload/tensor_script.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

/// All state on the drive.
TensorOptimizerOptions starved(const std::filesystem::path& drive,
                               const std::filesystem::path& out) {
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{7} << 20;
    options.chunk_bytes = std::size_t{64} << 10;
    options.isa = cpu_optim::supported_isas().back();
    options.nvme = drive;
    options.out = out;
    return options;
}

}  // namespace

TEST_CASE("a commit log that lost the files of its older commit is still read",
          "[tensor_optimizer]") {
    const TensorScript script;
    const TemporaryFolder folder;
    const auto options = starved(folder.path(), folder.path() / "out");
    {
        auto model = script.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        CHECK(script.run(optimizer, model, 0).durable == 4);
    }
    // Of four commits the last stands in slot 1.
    CHECK(std::filesystem::remove(options.out / StateFolder::folder_name / "record.0"));
    CHECK(std::filesystem::remove(options.out / StateFolder::folder_name / "table.0"));
    auto model = script.start();
    TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
    const auto note = optimizer.recover();
    REQUIRE(note.has_value());
    CHECK(note->iteration == 4);
    CHECK(script.run(optimizer, model, 5).error.empty());
    CHECK((bits_of(model) == script.uninterrupted().back().weights));
}

TEST_CASE("a drive without room for the state is refused before anything is made",
          "[tensor_optimizer]") {
    const nvme::testing::MountedFolder disk("tmpfs", "size=2m");
    if (!disk.ok()) {
        skip("no tmpfs can be mounted here: " + disk.refusal());
        return;
    }
    const TensorScript script;
    const TemporaryFolder folder;
    for (const auto& out : {folder.path() / "out", std::filesystem::path()}) {
        const auto options = starved(disk.path(), out);
        auto model = script.start();
        try {
            const TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
            FAIL("it was made");
        } catch (const PlanRefused& refused) {
            CHECK_THAT(refused.what(), Catch::Contains(disk.path().string()));
            CHECK(refused.available_bytes <= std::size_t{2} << 20);
            CHECK(refused.needed_bytes > refused.available_bytes);
        }
        CHECK(std::filesystem::is_empty(disk.path()));
        CHECK_FALSE(StateFolder::holds_run(folder.path() / "out"));
    }
}
