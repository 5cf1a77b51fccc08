// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "engine/cli/nearest.h"
#include "engine/cli/usage_error.h"

namespace spillway::engine {

namespace {

constexpr std::array<std::string_view, 2> benches_to_come{"memory", "all"};

constexpr std::string_view help_text =
    "spillway bench WHAT [options]\n"
    "Measures what this machine really gives.\n\n"
    "what:\n"
    "  storage   reads and writes of the drive under a folder\n"
    "  adam      an optimizer's update in memory, against the memory's own rate\n"
    "  link      copies between host memory and a device\n"
    "  step      optimizer steps with state on the drive, against the machine's bound\n\n"
    "`spillway bench WHAT --help` shows the options with their defaults.\n";

}  // namespace

int run_bench(std::span<const std::string> arguments, Console& console) {
    if (arguments.empty())
        throw UsageError("bench needs what to measure: `spillway bench storage --dir DIR`");
    const std::string& what = arguments.front();
    if (what == "--help" || what == "-h") {
        console.result(help_text);
        return as_int(ExitCode::done);
    }
    if (what == "storage")
        return run_bench_storage(arguments.subspan(1), console);
    if (what == "adam")
        return run_bench_adam(arguments.subspan(1), console);
    if (what == "link")
        return run_bench_link(arguments.subspan(1), console);
    if (what == "step")
        return run_bench_step(arguments.subspan(1), console);
    if (std::find(benches_to_come.begin(), benches_to_come.end(), what) != benches_to_come.end())
        throw UsageError(fmt::format("bench {} is not available in this version", what));
    throw UsageError(fmt::format(
        "\"{}\" cannot be measured{}", what,
        suggestion(what, std::vector<std::string>{"storage", "adam", "link", "step"}, "")));
}

}  // namespace spillway::engine
