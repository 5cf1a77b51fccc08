// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <string>

#include "engine/cli/option_set.h"

namespace spillway::engine {

/// Why no file can be written at `path`, "" if nothing is known to prevent it. Nothing is created,
/// opened or changed. `made` is a folder that the verb makes itself before it writes: a file right
/// in it counts as possible.
[[nodiscard]] std::string file_problem(const std::filesystem::path& path,
                                       const std::filesystem::path& made = {});

/// The same of a folder that is to be made, with those above it, if it is not there.
[[nodiscard]] std::string folder_problem(const std::filesystem::path& path);

/// Throws std::invalid_argument unless `destination` is "", "-" or a file that can be written.
void check_json_destination(const std::string& destination, const std::filesystem::path& made = {});

/// The same of a file that is put together beside its place: nothing but a file may be there.
void check_file_destination(const std::filesystem::path& destination,
                            const std::filesystem::path& made = {});

/// Declares `--json`, refused while nothing is done yet if its file cannot be written. `made` is
/// looked at when the options are read: declare its own option first, and keep it alive.
void add_json_option(OptionSet& options, std::string& into,
                     std::string help = "where the result goes as JSON",
                     const std::filesystem::path* made = nullptr);

}  // namespace spillway::engine
