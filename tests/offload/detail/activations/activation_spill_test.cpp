// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/activations/activation_spill.h"

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/direct_file.h"
#include "tests/nvme/mounts.h"
#include "tests/support/skip.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::offload::detail;

TEST_CASE(
    "activation spill: a drive that is full when its file is made is named, and left as it was") {
    const nvme::testing::MountedFolder drive("tmpfs", "size=4m");
    if (!drive.ok())
        return testing::skip("cannot mount a tmpfs: " + drive.refusal());
    const auto free_bytes = nvme::available_bytes(drive.path());
    const ActivationLayout layout{
        .tiers = {ActivationTier::nvme, ActivationTier::nvme, ActivationTier::device},
        .micro_batches = 2,
        .bytes = std::size_t{1} << 20};
    const DriveQueues queues(1, {});
    const std::vector<std::filesystem::path> folders{drive.path()};
    {
        const ActivationSpill fits(queues, folders, layout, std::vector<double>{1});
        CHECK(nvme::available_bytes(drive.path()) + (std::size_t{4} << 20) == free_bytes);
        CHECK(std::filesystem::is_empty(drive.path()));
    }
    auto larger = layout;
    larger.bytes += 4096;
    try {
        const ActivationSpill full(queues, folders, larger, std::vector<double>{1});
        FAIL("nothing was thrown");
    } catch (const std::system_error& error) {
        CHECK(error.code() == std::errc::no_space_on_device);
        const std::string text = error.what();
        CHECK_THAT(text, Catch::Contains(drive.path().string()) &&
                             Catch::Contains("cannot reserve 4210688 bytes") &&
                             Catch::Contains("4194304 bytes are available"));
    }
    CHECK(std::filesystem::is_empty(drive.path()));
    CHECK(nvme::available_bytes(drive.path()) == free_bytes);
}
