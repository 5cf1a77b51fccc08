// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/info.h"

#include <filesystem>

#include "engine/cli/machine_report.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"

namespace spillway::engine {

int run_info(std::span<const std::string> arguments, Console& console) {
    std::filesystem::path folder = ".";
    std::string json;
    OptionSet options("info", "Shows what this machine has for training.");
    options.add({"dir", "DIR", "the folder whose drive is looked at", ""}, folder);
    add_json_option(options, json);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    if (!std::filesystem::is_directory(folder))
        throw UsageError("--dir " + folder.string() + ": is no folder");
    const auto report = inspect_machine(folder);
    for (const auto& line : machine_report_lines(report))
        console.line(line);
    if (!json.empty())
        console.write_json(machine_report_json(report), json);
    return as_int(ExitCode::done);
}

}  // namespace spillway::engine
