// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <span>
#include <string>

#include "engine/cli/console.h"

namespace spillway::engine {

/// One verb of the program. `run` returns an exit code, or throws: UsageError, offload::PlanRefused
/// and offload::FolderRefused mean exit code 2, every other exception 1.
struct Verb {
    std::string name;
    std::string summary;  ///< one line, for `spillway --help`
    int (*run)(std::span<const std::string> arguments, Console& console);
};

/// Runs the verb that the first argument names; `--help` and `--version` are answered here. Names
/// that are to come are refused as such. Everything thrown becomes a message and an exit code.
[[nodiscard]] int run_program(std::span<const Verb> verbs, std::span<const std::string> arguments,
                              Console& console);

}  // namespace spillway::engine
