// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verb_table.h"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "engine/cli/nearest.h"
#include "engine/cli/usage_error.h"
#include "offload/plan.h"
#include "offload/state_folder.h"

namespace spillway::engine {
namespace {

std::string program_help(std::span<const Verb> verbs) {
    std::string text =
        "spillway VERB [--config FILE.json] [options]\n"
        "Trains models whose state does not fit the machine's memory.\n\nverbs:\n";
    for (const auto& verb : verbs)
        text += fmt::format("  {:<10}{}\n", verb.name, verb.summary);
    return text +
           "\n`spillway VERB --help` shows a verb's options with their defaults. Exit codes: 0 "
           "done,\n1 failed, 2 bad usage or a plan that cannot fit, 130 interrupted after a "
           "commit.\n";
}

UsageError unknown_verb(std::span<const Verb> verbs, const std::string& name) {
    std::vector<std::string> names;
    for (const auto& verb : verbs)
        names.push_back(verb.name);
    return UsageError(fmt::format("\"{}\" is no verb{}", name, suggestion(name, names, "")));
}

int run_named(std::span<const Verb> verbs, std::span<const std::string> arguments,
              Console& console) {
    if (arguments.empty())
        throw UsageError("a verb is needed; `spillway --help` lists them");
    const auto& name = arguments.front();
    if (name == "--help" || name == "-h" || name == "help") {
        console.result(program_help(verbs));
        return as_int(ExitCode::done);
    }
    if (name == "--version") {
        console.result("spillway " SPILLWAY_VERSION "\n");
        return as_int(ExitCode::done);
    }
    for (const auto& verb : verbs) {
        if (verb.name == name)
            return verb.run(arguments.subspan(1), console);
    }
    throw unknown_verb(verbs, name);
}

int report(Console& console, ExitCode code, const std::string& text) {
    console.error(text);
    return as_int(code);
}

}  // namespace

int run_program(std::span<const Verb> verbs, std::span<const std::string> arguments,
                Console& console) {
    try {
        return run_named(verbs, arguments, console);
    } catch (const UsageError& error) {
        for (const auto& problem : error.problems())
            console.error(problem);
        return as_int(ExitCode::bad_usage);
    } catch (const offload::PlanRefused& error) {
        return report(console, ExitCode::bad_usage, error.what());
    } catch (const offload::FolderRefused& error) {
        return report(console, ExitCode::bad_usage, error.what());
    } catch (const std::exception& error) {
        return report(console, ExitCode::failed, error.what());
    }
}

}  // namespace spillway::engine
