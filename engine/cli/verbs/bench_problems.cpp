// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_problems.h"

#include "engine/cli/usage_error.h"
#include "engine/measure/machine_memory.h"
#include "engine/settings/train_settings.h"
#include "engine/train/train_report.h"

namespace spillway::engine {

void BenchProblems::check_threads(std::size_t threads) {
    if (threads == 0)
        add("--threads: 0 threads compute nothing: choose 1 or more");
    if (threads > most_threads)
        add(fmt::format("--threads is {}; at most {} can compute", threads, most_threads));
}

void BenchProblems::check_memory(std::uint64_t elements, std::uint64_t needed_bytes) {
    const auto available = available_memory();
    if (needed_bytes > available.bytes)
        add(
            fmt::format("--elements: {} elements need {} of memory, {} are available (limited by "
                        "{}): ask for fewer",
                        elements, human_bytes(needed_bytes), human_bytes(available.bytes),
                        available.limited_by));
}

void BenchProblems::throw_if_any() const {
    if (!problems_.empty())
        throw UsageError(problems_);
}

}  // namespace spillway::engine
