// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/storage_bench.h"

#include <atomic>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/direct_file.h"
#include "tests/nvme/mounts.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using Catch::Contains;
using spillway::testing::skip;
using spillway::testing::TemporaryFolder;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

StorageBenchOptions small(const std::filesystem::path& folder) {
    StorageBenchOptions options;
    options.folders = {folder};
    options.file_bytes = 8 * mebibyte;
    options.block_bytes = {65536};
    options.depths = {4};
    options.time_limit_s = 0.4;
    return options;
}

std::string only_problem(const StorageBenchOptions& options) {
    const auto problems = problems_of(options);
    return problems.size() == 1 ? problems.front() : std::to_string(problems.size()) + " problems";
}

}  // namespace

TEST_CASE("storage_bench: every combination is a row, and all data comes back as written") {
    const TemporaryFolder folder;
    StorageBenchOptions options = small(folder.path());
    options.block_bytes = {65536, 12288};  // the second fits neither the file nor the pattern
    options.depths = {1, 4};
    options.backends = {BackendKind::threads, BackendKind::automatic};
    options.time_limit_s = 1.2;
    const StorageBenchResult result = run_storage_bench(options);
    REQUIRE(result.rows.size() == 24);
    std::set<std::tuple<std::string, std::size_t, std::size_t, std::string>> kinds;
    for (const StorageBenchRow& row : result.rows) {
        kinds.insert({name_of(row.traffic), row.block_bytes, row.depth, row.backend});
        CHECK(row.moved_bytes >= row.depth * row.block_bytes);
        CHECK(row.moved_bytes % row.block_bytes == 0);
        CHECK(row.bytes_per_s ==
              Approx(static_cast<double>(row.moved_bytes) / row.wall_s).epsilon(0.01));
        CHECK(row.p50_us > 0);
        CHECK(row.p99_us >= row.p50_us);
        CHECK(row.cpu_s_per_gb > 0);
        CHECK(row.settling.has_value() == (row.traffic == StorageTraffic::write));
        if (row.settling)
            CHECK(row.settling->sustained_bytes_per_s > 0);
    }
    CHECK(kinds.size() == 24);
    CHECK(result.verified_bytes == 8 * mebibyte);
    CHECK_FALSE(result.interrupted);
    CHECK(std::filesystem::is_empty(folder.path()));
    REQUIRE(result.drives.size() == 1);
    if (result.drives[0].is_direct)
        CHECK(result.drives[0].cached_fraction < 0.01);
}

TEST_CASE("storage_bench: two folders are driven at once and their rates add up") {
    const TemporaryFolder one;
    const TemporaryFolder two;
    StorageBenchOptions options = small(one.path());
    options.folders.push_back(two.path());
    options.traffics = {StorageTraffic::read};
    const StorageBenchResult result = run_storage_bench(options);
    REQUIRE(result.rows.size() == 1);
    CHECK(result.rows[0].wall_s < options.time_limit_s + 10);
    CHECK(result.drives.size() == 2);
    CHECK(result.verified_bytes == 16 * mebibyte);
    CHECK(std::filesystem::is_empty(one.path()));
    CHECK(std::filesystem::is_empty(two.path()));
}

TEST_CASE("storage_bench: writes go on until their rate has settled, and no longer than allowed") {
    const TemporaryFolder folder;
    StorageBenchOptions options = small(folder.path());
    options.traffics = {StorageTraffic::write, StorageTraffic::read};
    options.most_parts_to_settle = GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{5});
    const StorageBenchResult result = run_storage_bench(options);
    REQUIRE(result.rows.size() == 2);
    const double part_s = options.time_limit_s / 2;
    const auto parts = static_cast<double>(options.most_parts_to_settle + 1);
    const auto& write = result.rows[0];
    REQUIRE(write.settling);
    // Each part takes its time at least; all that are allowed were used where it did not settle.
    if (!write.settling->settled)
        CHECK(write.wall_s >= part_s * parts * 0.99);
    CHECK(write.bytes_per_s ==
          Approx(static_cast<double>(write.moved_bytes) / write.wall_s).epsilon(0.01));
    CHECK(write.settling->burst_bytes_per_s > 0);
    CHECK_FALSE(result.rows[1].settling);
}

TEST_CASE("storage_bench: a page cache that takes part is seen") {
    const testing::MountedFolder memory("tmpfs", "size=64m");
    if (!memory.ok())
        return skip("cannot mount a tmpfs: " + memory.refusal());
    const StorageBenchResult result = run_storage_bench(small(memory.path()));
    REQUIRE(result.drives.size() == 1);
    // Newer kernels take O_DIRECT there, but the file is in memory all the same.
    CHECK(result.drives[0].cached_fraction > 0.99);
}

TEST_CASE("storage_bench: stopping ends it early, keeps whole rows and leaves no file") {
    const TemporaryFolder folder;
    StorageBenchOptions options = small(folder.path());
    options.time_limit_s = 600;
    std::atomic<int> asked = 0;
    options.stop = [&] { return ++asked > 200; };
    const StorageBenchResult result = run_storage_bench(options);
    CHECK(result.interrupted);
    CHECK(result.rows.empty());
    CHECK(result.verified_bytes == 0);
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("storage_bench: what cannot be measured is refused with the reason") {
    const TemporaryFolder folder;
    StorageBenchOptions options = small(folder.path());
    CHECK(problems_of(options).empty());
    std::string said;
    SECTION("no folder") {
        options.folders = {folder.path() / "absent"};
        said = "absent is no folder";
    }
    SECTION("no room") {
        options.file_bytes = std::uint64_t{1} << 60;
        said = "needs 1152921504606846976 bytes";
    }
    SECTION("block size") {
        options.block_bytes = {4096, 1000};
        said = "1000 bytes is not a multiple of 4096";
    }
    SECTION("depth") {
        options.depths = {0};
        said = "a depth of 0";
    }
    SECTION("more in flight than the file holds") {
        options.depths = {4000};
        said = "4000 blocks of 65536 bytes in flight do not fit a file of 8388608 bytes";
    }
    SECTION("time") {
        options.time_limit_s = 0;
        said = "too short";
    }
    SECTION("nothing to do") {
        options.traffics.clear();
        said = "nothing is measured";
    }
    CHECK_THAT(only_problem(options), Contains(said));
    CHECK_THROWS_AS(run_storage_bench(options), std::invalid_argument);
    CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("storage_bench: a drive that fills up before the file is made leaves nothing behind") {
    const testing::SmallDisk disk(64);
    if (!disk.ok())
        return skip("cannot make a 64 MiB loop disk: " + disk.refusal());
    StorageBenchOptions options = small(disk.path());
    options.folders = {disk.path(), disk.path()};  // each fits, both do not
    options.file_bytes = available_bytes(disk.path()) / mebibyte * 3 / 4 * mebibyte;
    REQUIRE(problems_of(options).empty());
    CHECK_THROWS_WITH(run_storage_bench(options),
                      Contains("cannot reserve") && Contains("bytes are available"));
    for (const auto& entry : std::filesystem::directory_iterator(disk.path()))
        CHECK(entry.path().filename() == "lost+found");
}
