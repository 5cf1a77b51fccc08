// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/probe.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/cpu_device.h"
#include "engine/measure/drive_probe.h"
#include "nvme/huge_page_arena.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

ProbeRequest short_probe(cuda::Device& device, const fs::path& folder) {
    return {
        .nvme_folders = folder.empty() ? std::vector<fs::path>{} : std::vector<fs::path>{folder},
        .threads = 2,
        .isa = cpu_optim::best_isa(),
        .device = device,
        .memory_bytes = std::size_t{8} << 20,
        .time_limit_s = 0.4};
}

}  // namespace

TEST_CASE("probe: every resource the machine has gets a rate, and nothing is left behind") {
    const testing::TemporaryFolder folder;
    const auto device = cuda::make_device("sim:16MiB", 0);
    const auto profile = probe_machine(short_probe(*device, folder.path()));
    REQUIRE(profile.drive.has_value());
    CHECK(profile.drive->read_bytes_per_s > 1e6);
    CHECK(profile.drive->write_bytes_per_s > 1e6);
    CHECK(profile.drive->mixed_bytes_per_s > 1e6);
    CHECK(profile.dram_bytes_per_s > 1e8);
    CHECK(profile.dram_bytes_per_s < 1e13);
    CHECK(profile.to_device_bytes_per_s > 1e6);
    CHECK(profile.to_host_bytes_per_s > 1e6);
    CHECK(profile.key.threads == 2);
    CHECK(profile.key.file_system == file_system_identity(folder.path()));
    CHECK(fs::is_empty(folder.path()));
    CHECK(device->free_bytes() == device->capacity_bytes());
}

TEST_CASE("probe: a link of a known rate is not measured, a host device has none") {
    const auto simulated = cuda::make_device("sim:1MiB@3GB/s", 0);
    const auto slow_link = probe_machine(short_probe(*simulated, {}));
    CHECK(slow_link.to_device_bytes_per_s == 3e9);
    CHECK(slow_link.to_host_bytes_per_s == 3e9);
    CHECK_FALSE(slow_link.drive.has_value());
    const auto host = cuda::make_cpu_device(1 << 20);
    CHECK(probe_machine(short_probe(*host, {})).to_device_bytes_per_s == 0);
}

TEST_CASE("probe: a request that cannot be served is refused") {
    const testing::TemporaryFolder folder;
    const auto host = cuda::make_cpu_device(1 << 20);
    auto request = short_probe(*host, {});
    request.memory_bytes = 1 << 20;
    CHECK_THROWS_WITH(probe_machine(request), Contains("4194304") && Contains("1048576"));
    std::vector<std::byte> small(1 << 20);
    CHECK_THROWS_AS(probe_drive({.folder = folder.path(), .buffers = small}),
                    std::invalid_argument);
    CHECK_THROWS_WITH(probe_machine(short_probe(*host, folder.path() / "absent")),
                      Contains("absent"));
}

TEST_CASE("probe: a full drive is left alone, with a note") {
    const testing::TemporaryFolder folder;
    const nvme::HugePageArena arena(2 << 20);
    const auto result = probe_drive({.folder = folder.path(),
                                     .buffers = arena.bytes(),
                                     .time_limit_s = 0.1,
                                     .file_bytes = std::uint64_t{1} << 20});
    CHECK_FALSE(result.rates.has_value());
    REQUIRE(result.notes.size() == 1);
    CHECK_THAT(result.notes[0], Contains("no room") && Contains(folder.path().string()));
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("probe: a recent profile is recalled, an old or foreign one measured anew") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    const auto host = cuda::make_cpu_device(1 << 20);
    auto request = short_probe(*host, {});
    request.time_limit_s = 0.05;
    const auto first = recall_or_probe(request, path, 3600);
    CHECK(recall_or_probe(request, path, 3600) == first);
    auto old = first;
    old.measured_unix_s -= 7200;
    store_profile(path, old);
    CHECK(recall_or_probe(request, path, 3600).measured_unix_s >= first.measured_unix_s);
    std::ofstream(path, std::ios::trunc) << "damaged";
    const auto after = recall_or_probe(request, path, 3600);
    REQUIRE_FALSE(after.notes.empty());
    CHECK_THAT(after.notes.back(), Contains("ignored"));
    const auto nowhere = recall_or_probe(request, path / "below a file", 3600);
    REQUIRE_FALSE(nowhere.notes.empty());
    CHECK(nowhere.dram_bytes_per_s > 0);
}

TEST_CASE("probe: what is written to the drive cannot be compressed") {
    std::vector<std::byte> bytes(1 << 16);
    fill_incompressible(bytes, 7);
    std::vector<std::size_t> counts(256);
    for (const auto byte : bytes)
        ++counts[std::to_integer<std::size_t>(byte)];
    for (const auto count : counts)
        CHECK((count > 170 && count < 350));  // 256 expected of each
    std::set<std::vector<std::byte>> blocks;
    for (std::size_t i = 0; i < bytes.size(); i += 16)
        blocks.insert({bytes.begin() + static_cast<std::ptrdiff_t>(i),
                       bytes.begin() + static_cast<std::ptrdiff_t>(i + 16)});
    CHECK(blocks.size() == bytes.size() / 16);
}

}  // namespace spillway::engine
