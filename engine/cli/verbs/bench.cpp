// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench.h"

#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "engine/cli/nearest.h"
#include "engine/cli/usage_error.h"

namespace spillway::engine {

namespace {

struct Bench {
    std::string_view name;
    int (*run)(std::span<const std::string>, Console&);
};
constexpr std::array<Bench, 6> benches{{{"storage", run_bench_storage},
                                        {"memory", run_bench_memory},
                                        {"adam", run_bench_adam},
                                        {"link", run_bench_link},
                                        {"step", run_bench_step},
                                        {"all", run_bench_all}}};

constexpr std::string_view help_text =
    "spillway bench WHAT [options]\n"
    "Measures what this machine really gives.\n\n"
    "what:\n"
    "  storage   reads and writes of the drive under a folder\n"
    "  memory    how fast threads change memory in place\n"
    "  adam      an optimizer's update in memory, against the memory's own rate\n"
    "  link      copies between host memory and a device\n"
    "  step      optimizer steps with state on the drive, against the machine's bound\n"
    "  all       these in turn, and what plan and train want to know of the machine\n\n"
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
    std::vector<std::string> names;
    for (const auto& [name, run] : benches) {
        if (what == name)
            return run(arguments.subspan(1), console);
        names.emplace_back(name);
    }
    throw UsageError(fmt::format("\"{}\" cannot be measured{}", what, suggestion(what, names, "")));
}

}  // namespace spillway::engine
