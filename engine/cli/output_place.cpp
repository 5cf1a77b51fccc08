// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/output_place.h"

#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include "engine/interop/input_file.h"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

/// What a run's own names below its folder may still need.
constexpr std::size_t reserved_path_bytes = 256;

/// "" if it can be made a whole path, which `path` then is.
std::string make_absolute(fs::path& path) {
    std::error_code error;
    auto absolute = fs::absolute(path, error);
    if (error)
        return "the present folder cannot be told: " + error.message();
    path = absolute.lexically_normal();
    if (!path.has_filename())
        path = path.parent_path();
    if (path.native().size() + reserved_path_bytes > PATH_MAX)
        return fmt::format("its path has {} bytes; at most {} are possible", path.native().size(),
                           PATH_MAX - reserved_path_bytes);
    for (const auto& part : path) {
        if (part.native().size() > NAME_MAX)
            return fmt::format("a name in it has {} bytes; at most {} are possible",
                               part.native().size(), NAME_MAX);
    }
    return "";
}

std::string writable_folder_problem(const fs::path& folder) {
    std::error_code error;
    const auto status = fs::status(folder, error);
    if (status.type() == fs::file_type::none)
        return fmt::format("{} cannot be looked at: {}", folder.string(), error.message());
    if (!fs::is_directory(status))
        return fmt::format("{} {}", folder.string(),
                           fs::exists(status) ? "is no folder" : "is not there; make it first");
    if (::access(folder.c_str(), W_OK | X_OK) != 0)
        return fmt::format("the folder {} cannot be written", folder.string());
    return "";
}

}  // namespace

std::string file_problem(const fs::path& given, const fs::path& given_made) {
    auto path = given;
    if (auto problem = make_absolute(path); !problem.empty())
        return problem;
    std::error_code error;
    const auto status = fs::status(path, error);
    if (status.type() == fs::file_type::none)
        return "it cannot be looked at: " + error.message();
    if (fs::is_directory(status))
        return "it is a folder; name a file";
    // A device or pipe is written to; a file is replaced, which is its folder's matter.
    if (fs::exists(status) && !fs::is_regular_file(status))
        return ::access(path.c_str(), W_OK) == 0 ? "" : "it cannot be written";
    auto made = given_made;
    if (!made.empty() && make_absolute(made).empty() && made == path.parent_path())
        return "";
    return writable_folder_problem(path.parent_path());
}

std::string folder_problem(const fs::path& given) {
    auto path = given;
    if (auto problem = make_absolute(path); !problem.empty())
        return problem;
    std::error_code ignored;
    while (!fs::exists(fs::symlink_status(path, ignored)) && path.has_relative_path())
        path = path.parent_path();
    return writable_folder_problem(path);
}

void check_json_destination(const std::string& destination, const fs::path& made) {
    if (destination.empty() || destination == "-")
        return;
    if (const auto problem = file_problem(destination, made); !problem.empty())
        throw std::invalid_argument(destination + " cannot be written: " + problem);
}

void check_file_destination(const fs::path& destination, const fs::path& made) {
    auto problem = file_problem(destination, made);
    std::error_code ignored;
    if (problem.empty() && fs::exists(destination, ignored) &&
        !fs::is_regular_file(destination, ignored))
        problem = "it is not a file";
    if (!problem.empty())
        throw std::invalid_argument(destination.string() + " cannot be written: " + problem);
}

void add_json_option(OptionSet& options, std::string& into, std::string help,
                     const fs::path* made) {
    options.add({.name = "json",
                 .value_name = "FILE|-",
                 .help = std::move(help),
                 .default_text = "nowhere",
                 .set = [&into, made](const std::string& text) {
                     check_json_destination(text, made == nullptr ? fs::path() : *made);
                     into = text;
                 }});
}

}  // namespace spillway::engine
