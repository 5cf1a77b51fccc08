// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace spillway::engine {

/// A key of a configuration file with its value as a flag would carry it.
struct ConfigEntry {
    std::string key;
    std::string value;  ///< lists joined by commas; true and false as such
};

/// Reads a JSON object of texts, numbers, booleans and lists of these; a null counts as not given.
/// What is wrong (unreadable, no JSON, no object, a nested object, a repeated key) is added to
/// `problems`, each naming the file, and what could be read is returned.
[[nodiscard]] std::vector<ConfigEntry> read_config_file(const std::filesystem::path& path,
                                                        std::vector<std::string>& problems);

}  // namespace spillway::engine
