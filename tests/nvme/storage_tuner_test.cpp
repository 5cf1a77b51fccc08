// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/storage_tuner.h"

#include <filesystem>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using spillway::testing::TemporaryFolder;

namespace {

struct Rates {
    double read = 0;
    double write = 0;
    double mixed = 0;
};

/// The three rows of one backend, block and depth.
void add(std::vector<StorageBenchRow>& rows, const std::string& backend, std::size_t block,
         std::size_t depth, Rates rates, double cpu_s_per_gb) {
    const auto row = [&](StorageTraffic traffic, double bytes_per_s) {
        StorageBenchRow one;
        one.traffic = traffic;
        one.backend = backend;
        one.block_bytes = block;
        one.depth = depth;
        one.bytes_per_s = bytes_per_s;
        one.cpu_s_per_gb = cpu_s_per_gb;
        rows.push_back(one);
    };
    row(StorageTraffic::read, rates.read);
    row(StorageTraffic::write, rates.write);
    row(StorageTraffic::mixed, rates.mixed);
}

}  // namespace

TEST_CASE("storage_tuner: what binds a step least is best, not what reads fastest") {
    std::vector<StorageBenchRow> rows;
    add(rows, "threads", 65536, 8, {9e9, 1e9, 2e9}, 0.1);    // 1 ns a byte: its writes
    add(rows, "io_uring", 65536, 8, {2e9, 2e9, 3e9}, 0.1);   // 0.67 ns: both at once
    add(rows, "io_uring", 65536, 32, {2e9, 5e9, 4e9}, 0.1);  // 0.5 ns: its reads
    const auto best = best_settings(rows);
    REQUIRE(best);
    CHECK(*best == StorageSettings{"io_uring", 65536, 32, 2e9, 5e9, 4e9, best->cpu_s_per_gb});
    CHECK(best->cpu_s_per_gb == Approx(0.1));
}

TEST_CASE("storage_tuner: among equals the processor decides, and outliers do not") {
    std::vector<StorageBenchRow> rows;
    add(rows, "io_uring", 1 << 20, 32, {2.00e9, 2e9, 4e9}, 0.010);
    add(rows, "io_uring", 4 << 20, 32, {1.96e9, 2e9, 4e9}, 0.003);
    add(rows, "io_uring", 4 << 20, 8, {1.90e9, 2e9, 4e9}, 0.001);
    CHECK(best_settings(rows)->block_bytes == 4 << 20);
    CHECK(best_settings(rows)->depth == 32);
    // One bad moment of three is outvoted.
    for (int i = 0; i < 2; ++i)
        add(rows, "threads", 1 << 20, 8, {3e9, 3e9, 6e9}, 0.1);
    add(rows, "threads", 1 << 20, 8, {1e8, 1e8, 1e8}, 9);
    CHECK(best_settings(rows)->backend == "threads");
    CHECK(best_settings(rows)->read_bytes_per_s == 3e9);
}

TEST_CASE("storage_tuner: what lacks a direction is no candidate") {
    std::vector<StorageBenchRow> rows;
    CHECK_FALSE(best_settings(rows));
    add(rows, "threads", 65536, 8, {1e9, 1e9, 1e9}, 0.1);
    rows.pop_back();
    CHECK_FALSE(best_settings(rows));
    add(rows, "libaio", 65536, 8, {1e8, 1e8, 1e8}, 0.1);
    CHECK(best_settings(rows)->backend == "libaio");
}

TEST_CASE("storage_tuner: a drive is tuned, and its folder stays as it was") {
    const TemporaryFolder folder;
    constexpr std::size_t file_bytes = std::size_t{32} << 20;
    const auto tuning = tune_storage(folder.path(), file_bytes, 3, [] { return false; });
    REQUIRE(tuning.best);
    CHECK(backend_kind(tuning.best->backend));
    CHECK(tuning.best->backend != "auto");
    CHECK(tuning.best->block_bytes * tuning.best->depth <= file_bytes);
    CHECK(tuning.best->mixed_bytes_per_s > 0);
    CHECK(best_settings(tuning.measured.rows) == tuning.best);
    CHECK(tuning.measured.verified_bytes == 2 * file_bytes);
    CHECK(std::filesystem::is_empty(folder.path()));

    const auto stopped = tune_storage(folder.path(), file_bytes, 3, [] { return true; });
    CHECK_FALSE(stopped.best);
    CHECK(stopped.measured.interrupted);
}
