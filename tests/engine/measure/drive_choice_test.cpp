// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/drive_choice.h"

#include <catch2/catch.hpp>

#include "nvme/io_backend.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::engine;
using nvme::BackendKind;

namespace {

DriveSettings tuned_for(const std::filesystem::path& folder) {
    return {.file_system = file_system_identity(folder),
            .measured_unix_s = 1,
            .backend = "threads",
            .operation_bytes = std::size_t{2} << 20,
            .depth = 7,
            .rates = {1e9, 1e9, 1e9}};
}

const offload::DriveIo as_tuned{BackendKind::threads, 7, std::size_t{2} << 20};

}  // namespace

TEST_CASE("drive choice: a tuned drive is driven as tuned, another by the defaults") {
    const testing::TemporaryFolder folder;
    const std::vector folders{folder.path()};
    const std::vector tuned{tuned_for(folder.path())};
    CHECK(choose_drive_io(folders, BackendKind::automatic, tuned) == std::vector{as_tuned});
    CHECK(choose_drive_io(folders, BackendKind::automatic, {}) == std::vector{offload::DriveIo{}});
    auto elsewhere = tuned;
    elsewhere[0].file_system = "ef53:elsewhere";
    CHECK(choose_drive_io(folders, BackendKind::automatic, elsewhere) ==
          std::vector{offload::DriveIo{}});
    CHECK(choose_drive_io({}, BackendKind::automatic, tuned).empty());
}

TEST_CASE("drive choice: a backend demanded by name is used, tuned for it or not") {
    const testing::TemporaryFolder folder;
    const std::vector folders{folder.path()};
    const std::vector tuned{tuned_for(folder.path())};
    CHECK(choose_drive_io(folders, BackendKind::threads, tuned) == std::vector{as_tuned});
    CHECK(choose_drive_io(folders, BackendKind::io_uring, tuned) ==
          std::vector{offload::DriveIo{.backend = BackendKind::io_uring}});
}

TEST_CASE("drive choice: a run takes them from the profile it names") {
    const testing::TemporaryFolder folder;
    TrainSettings settings;
    settings.nvme = folder.path().string();
    settings.profile = folder.path() / "profile.json";
    CHECK(choose_drive_io(settings) == std::vector{offload::DriveIo{}});
    store_drive_settings(settings.profile, tuned_for(folder.path()));
    CHECK(choose_drive_io(settings) == std::vector{as_tuned});
    settings.io_backend = "libaio";
    CHECK(choose_drive_io(settings).at(0).backend == BackendKind::libaio);
    settings.nvme.clear();
    CHECK(choose_drive_io(settings).empty());
}

TEST_CASE("drive choice: the text tells any two apart") {
    CHECK(drive_io_text({}) == "auto, 4194304 bytes at depth 32");
    CHECK(drive_io_text(as_tuned) == "threads, 2097152 bytes at depth 7");
}
