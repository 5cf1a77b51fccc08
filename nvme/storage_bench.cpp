// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/storage_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <time.h>

#include "nvme/detail/bench_drive.h"
#include "nvme/direct_file.h"

namespace spillway::nvme {

namespace {

namespace fs = std::filesystem;
using detail::BenchCount;
using detail::BenchDrive;
using detail::BenchRun;
using Drives = std::vector<std::unique_ptr<BenchDrive>>;

constexpr std::size_t block_unit_bytes = 4096;
constexpr std::size_t most_depth = 4096;

double processor_seconds() {
    timespec now = {};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// All drives at once, each by a thread of its own: a slow one must not hold back the others.
void on_every(const Drives& drives, const std::function<void(std::size_t)>& work) {
    std::vector<std::exception_ptr> errors(drives.size());
    {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < drives.size(); ++i)
            threads.emplace_back([&, i] {
                try {
                    work(i);
                } catch (...) {
                    errors[i] = std::current_exception();
                }
            });
    }
    for (const auto& error : errors)
        if (error)
            std::rethrow_exception(error);
}

double percentile(std::vector<float>& values, double fraction) {
    if (values.empty())
        return 0;
    const auto rank = static_cast<std::ptrdiff_t>(fraction * static_cast<double>(values.size()));
    const auto at = values.begin() +
                    std::min<std::ptrdiff_t>(rank, static_cast<std::ptrdiff_t>(values.size()) - 1);
    std::nth_element(values.begin(), at, values.end());
    return *at;
}

StorageBenchRow::Settling settling_of(const std::vector<BenchCount>& counts, double time_limit_s,
                                      double wall_s) {
    std::array<double, BenchCount::window_count> windows = {};
    for (const BenchCount& count : counts)
        for (std::size_t i = 0; i < windows.size(); ++i)
            windows[i] += static_cast<double>(count.windows[i]);
    const double window_s = time_limit_s / static_cast<double>(windows.size());
    const double third = windows[4] + windows[5];
    const double fourth = windows[6] + windows[7];
    const bool settled = std::abs(third - fourth) <= 0.1 * std::max(third, fourth);
    const double second_half_s = std::max(wall_s - 4 * window_s, window_s);
    return {windows[0] / window_s, (third + fourth) / second_half_s, settled};
}

StorageBenchRow measure_part(const Drives& drives, const BenchRun& run,
                             std::vector<std::string>& notes) {
    std::vector<BenchCount> counts(drives.size());
    const double processor_before_s = processor_seconds();
    on_every(drives, [&](std::size_t i) { counts[i] = drives[i]->run(run); });
    const double processor_s = processor_seconds() - processor_before_s;

    StorageBenchRow row;
    row.traffic = run.traffic;
    row.backend = counts.front().backend;
    row.block_bytes = run.block_bytes;
    row.depth = run.depth;
    std::vector<float> latencies_us;
    for (const BenchCount& count : counts) {
        row.moved_bytes += count.moved_bytes;
        row.wall_s = std::max(row.wall_s, count.wall_s);
        row.bytes_per_s += static_cast<double>(count.moved_bytes) / count.wall_s;
        latencies_us.insert(latencies_us.end(), count.latencies_us.begin(),
                            count.latencies_us.end());
        for (const std::string& note : count.notes)
            if (std::find(notes.begin(), notes.end(), note) == notes.end())
                notes.push_back(note);
    }
    row.p50_us = percentile(latencies_us, 0.50);
    row.p99_us = percentile(latencies_us, 0.99);
    row.cpu_s_per_gb = processor_s / (static_cast<double>(row.moved_bytes) * 1e-9);
    if (run.traffic == StorageTraffic::write)
        row.settling = settling_of(counts, run.time_limit_s, row.wall_s);
    return row;
}

/// Adds what the same traffic came to afterwards.
void append(StorageBenchRow& row, const StorageBenchRow& more) {
    const auto weight = static_cast<double>(more.moved_bytes) /
                        static_cast<double>(row.moved_bytes + more.moved_bytes);
    row.moved_bytes += more.moved_bytes;
    row.wall_s += more.wall_s;
    row.bytes_per_s = static_cast<double>(row.moved_bytes) / row.wall_s;
    row.cpu_s_per_gb += weight * (more.cpu_s_per_gb - row.cpu_s_per_gb);
    row.p50_us = more.p50_us;
    row.p99_us = std::max(row.p99_us, more.p99_us);
    row.settling->sustained_bytes_per_s = more.settling->sustained_bytes_per_s;
    row.settling->settled = more.settling->settled;
}

StorageBenchRow measure(const Drives& drives, const BenchRun& run,
                        const StorageBenchOptions& options, std::vector<std::string>& notes) {
    StorageBenchRow row = measure_part(drives, run, notes);
    for (std::size_t i = 0; i < options.most_parts_to_settle && row.settling; ++i) {
        if (row.settling->settled || options.stop())
            break;
        append(row, measure_part(drives, run, notes));
    }
    return row;
}

std::vector<BenchRun> runs_of(const StorageBenchOptions& options) {
    std::vector<BenchRun> runs;
    for (const BackendKind backend : options.backends)
        for (const std::size_t block_bytes : options.block_bytes)
            for (const std::size_t depth : options.depths)
                for (const StorageTraffic traffic : options.traffics)
                    runs.push_back({traffic, backend, block_bytes, depth, 0});
    const std::vector<BenchRun> round = runs;
    for (std::size_t i = 1; i < options.rounds; ++i)
        runs.insert(runs.end(), round.begin(), round.end());
    for (BenchRun& run : runs)
        run.time_limit_s = options.time_limit_s / static_cast<double>(runs.size());
    return runs;
}

std::size_t largest(const std::vector<std::size_t>& values) {
    return *std::max_element(values.begin(), values.end());
}

void check_folder(const fs::path& folder, const StorageBenchOptions& options,
                  std::vector<std::string>& problems) {
    std::error_code unknown;
    if (!fs::is_directory(folder, unknown)) {
        problems.push_back(
            fmt::format("{} is no folder: name one on the drive to be measured", folder.string()));
        return;
    }
    const std::uint64_t available = available_bytes(folder);
    if (available < options.file_bytes)
        problems.push_back(
            fmt::format("the file to be measured needs {} bytes and {} has {} "
                        "available: free space or ask for a smaller size",
                        options.file_bytes, folder.string(), available));
}

void check_sizes(const StorageBenchOptions& options, std::vector<std::string>& problems) {
    for (const std::size_t block : options.block_bytes)
        if (block == 0 || block % block_unit_bytes != 0)
            problems.push_back(fmt::format("a block of {} bytes is not a multiple of {}", block,
                                           block_unit_bytes));
    for (const std::size_t depth : options.depths)
        if (depth == 0 || depth > most_depth)
            problems.push_back(fmt::format("a depth of {} is not from 1 to {}", depth, most_depth));
    if (options.file_bytes == 0 || options.file_bytes % block_unit_bytes != 0)
        problems.push_back(fmt::format("a file of {} bytes is not a multiple of {}",
                                       options.file_bytes, block_unit_bytes));
    if (!problems.empty())
        return;
    const std::size_t block = largest(options.block_bytes);
    const std::size_t depth = largest(options.depths);
    if (block > options.file_bytes / depth)
        problems.push_back(
            fmt::format("{} blocks of {} bytes in flight do not fit a file of {} "
                        "bytes: ask for a larger size, or fewer or smaller blocks",
                        depth, block, options.file_bytes));
}

}  // namespace

const char* name_of(StorageTraffic traffic) noexcept {
    switch (traffic) {
        case StorageTraffic::read:
            return "read";
        case StorageTraffic::write:
            return "write";
        case StorageTraffic::mixed:
            break;
    }
    return "mixed";
}

std::vector<std::string> problems_of(const StorageBenchOptions& options) {
    std::vector<std::string> problems;
    if (options.folders.empty() || options.block_bytes.empty() || options.depths.empty() ||
        options.traffics.empty() || options.backends.empty() || options.rounds == 0)
        problems.emplace_back(
            "nothing is measured without a folder, a block size, a depth, a "
            "direction and a backend");
    else if (!(options.time_limit_s > 0))
        problems.push_back(fmt::format("a time of {} s is too short", options.time_limit_s));
    else
        check_sizes(options, problems);
    for (const fs::path& folder : options.folders)
        check_folder(folder, options, problems);
    return problems;
}

StorageBenchResult run_storage_bench(const StorageBenchOptions& options) {
    if (const auto problems = problems_of(options); !problems.empty())
        throw std::invalid_argument(fmt::format("{}", fmt::join(problems, "; ")));
    // A backend that does not work here is an error before any file is made.
    for (const BackendKind backend : options.backends)
        static_cast<void>(make_backend(backend, largest(options.depths)));
    const detail::BenchPattern pattern(largest(options.block_bytes));
    Drives drives;
    for (const fs::path& folder : options.folders)
        drives.push_back(
            std::make_unique<BenchDrive>(folder, options.file_bytes, pattern, options.stop));
    StorageBenchResult result;
    on_every(drives, [&](std::size_t i) { drives[i]->fill(options.backends.front()); });
    for (const BenchRun& run : runs_of(options)) {
        if (options.stop())
            break;
        StorageBenchRow row = measure(drives, run, options, result.notes);
        if (!options.stop())
            result.rows.push_back(std::move(row));
    }
    std::vector<std::uint64_t> verified_bytes(drives.size());
    if (!options.stop())
        on_every(drives, [&](std::size_t i) {
            verified_bytes[i] = drives[i]->verify(options.backends.front());
        });
    result.verified_bytes =
        std::accumulate(verified_bytes.begin(), verified_bytes.end(), std::uint64_t{0});
    for (const auto& drive : drives)
        result.drives.push_back(drive->describe());
    result.interrupted = options.stop();
    return result;
}

}  // namespace spillway::nvme
