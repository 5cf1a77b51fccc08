// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cpu_optim/isa.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/verbs/bench.h"
#include "engine/cli/verbs/bench_problems.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/machine_memory.h"
#include "engine/measure/median.h"
#include "engine/measure/memory_pass.h"
#include "engine/settings/train_settings.h"
#include "engine/train/stop_request.h"
#include "engine/train/train_report.h"
#include "nvme/huge_page_arena.h"

namespace spillway::engine {

namespace {

using Json = nlohmann::ordered_json;

struct Given {
    std::uint64_t bytes = std::uint64_t{512} << 20;
    std::uint32_t threads = 0;
    std::uint32_t passes = 7;
    std::string json;
};

/// Rates count bytes read and written.
struct Row {
    std::size_t threads = 0;
    std::vector<double> bytes_per_s;
};

struct Measured {
    std::vector<Row> rows;
    bool interrupted = false;
};

void declare(OptionSet& options, Given& given) {
    options.add_bytes(
        {"size", "BYTES", "of the memory gone over, many times what caches hold", "512MiB"},
        given.bytes);
    options.add({"threads", "N", "at most; fewer are measured too", "every processor"},
                given.threads);
    options.add({"passes", "N", "timed for each row; the median counts", ""}, given.passes);
    add_json_option(options, given.json);
}

void check(const Given& given) {
    constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;
    BenchProblems problems;
    problems.check_threads(given.threads);
    if (given.passes == 0)
        problems.add("--passes: 0 passes measure nothing: choose 1 or more");
    if (given.bytes < least_bytes)
        problems.add(
            fmt::format("--size is {} bytes; it must be {} or more", given.bytes, least_bytes));
    if (const auto available = available_memory(); given.bytes > available.bytes)
        problems.add(fmt::format("--size is {}; {} are available (limited by {}): ask for less",
                                 human_bytes(given.bytes), human_bytes(available.bytes),
                                 available.limited_by));
    problems.throw_if_any();
}

/// 1, 2, 4 ... and all.
std::vector<std::size_t> thread_counts(std::size_t most) {
    std::vector<std::size_t> counts;
    for (std::size_t count = 1; count < most; count *= 2)
        counts.push_back(count);
    counts.push_back(most);
    return counts;
}

/// Every word has been changed as often, from 0: all of them are what the last one is.
void verify(std::span<const std::byte> memory, std::size_t changed_bytes) {
    const std::span words(reinterpret_cast<const std::uint64_t*>(memory.data()),
                          changed_bytes / sizeof(std::uint64_t));
    const auto wrong = std::ranges::find_if(
        words, [&](std::uint64_t word) { return word == 0 || word != words.back(); });
    if (wrong != words.end())
        throw std::runtime_error(
            fmt::format("word {} of the memory is {:016x} and should be "
                        "{:016x}: memory or processor are faulty",
                        wrong - words.begin(), *wrong, words.back()));
}

Measured measure(const Given& given, const StopRequest& stop) {
    using Clock = std::chrono::steady_clock;
    const nvme::HugePageArena arena(given.bytes);
    Measured measured;
    std::size_t moved_bytes = 0;
    for (const auto threads : thread_counts(given.threads)) {
        ComputePool pool(threads, cpu_optim::best_isa());
        moved_bytes = change_in_place(pool, arena.bytes());  // the first touches it
        Row row{.threads = threads, .bytes_per_s = {}};
        for (std::uint32_t pass = 0; pass < given.passes && !stop.requested(); ++pass) {
            const auto start = Clock::now();
            static_cast<void>(change_in_place(pool, arena.bytes()));
            row.bytes_per_s.push_back(static_cast<double>(moved_bytes) /
                                      std::chrono::duration<double>(Clock::now() - start).count());
        }
        measured.interrupted = row.bytes_per_s.size() < given.passes;
        if (measured.interrupted)
            return measured;
        measured.rows.push_back(std::move(row));
    }
    verify(arena.bytes(), moved_bytes / 2);
    return measured;
}

void show(const Measured& measured, Console& console) {
    console.line(fmt::format("{:>9} {:>9} {:>19}", "threads", "GB/s", "least to most"));
    for (const auto& row : measured.rows) {
        const auto [least, most] = std::ranges::minmax(row.bytes_per_s);
        console.line(fmt::format("{:>9} {:>9.2f} {:>8.2f} to {:>7.2f}", row.threads,
                                 median(row.bytes_per_s) * 1e-9, least * 1e-9, most * 1e-9));
    }
    if (!measured.interrupted)
        console.line("verified: every word as it should be");
}

Json json_of(const Given& given, const Measured& measured) {
    Json root{{"size", given.bytes},
              {"passes", given.passes},
              {"rows", Json::array()},
              {"interrupted", measured.interrupted}};
    for (const auto& row : measured.rows) {
        const auto [least, most] = std::ranges::minmax(row.bytes_per_s);
        root["rows"].push_back({{"threads", row.threads},
                                {"bytes_per_s", median(row.bytes_per_s)},
                                {"least_bytes_per_s", least},
                                {"most_bytes_per_s", most}});
    }
    return root;
}

}  // namespace

int run_bench_memory(std::span<const std::string> arguments, Console& console) {
    Given given{.threads = static_cast<std::uint32_t>(usable_processors()), .json = ""};
    OptionSet options("bench memory",
                      "Measures how fast threads change memory in place, as updates do.");
    declare(options, given);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    check(given);
    const StopRequest stop;
    const auto measured = measure(given, stop);
    show(measured, console);
    if (!given.json.empty())
        console.write_json(json_of(given, measured).dump(2), given.json);
    return as_int(measured.interrupted ? ExitCode::interrupted : ExitCode::done);
}

}  // namespace spillway::engine
