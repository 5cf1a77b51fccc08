// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/folder_checks.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "offload/errors.h"

namespace spillway::offload::detail {
namespace {

namespace fs = std::filesystem;

std::string_view kind_of(fs::file_type type) {
    switch (type) {
        case fs::file_type::regular:
            return "a file";
        case fs::file_type::block:
        case fs::file_type::character:
            return "a device node";
        case fs::file_type::fifo:
            return "a pipe";
        case fs::file_type::socket:
            return "a socket";
        default:
            return "no folder";
    }
}

fs::file_type type_of(const fs::path& path, std::string_view what) {
    std::error_code error;
    const auto status = fs::status(path, error);
    if (status.type() == fs::file_type::none)
        throw FolderRefused(
            fmt::format("{} {} cannot be reached: {}", what, path.string(), error.message()));
    return status.type();
}

/// As the process's effective user, which is who will write.
void check_writable(const fs::path& folder, std::string_view what) {
    if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
        throw FolderRefused(
            fmt::format("{} {} cannot be written to: {}; needed is a folder with write permission",
                        what, folder.string(), std::generic_category().message(errno)));
}

void check_is_folder(const fs::path& path, fs::file_type type, std::string_view what) {
    if (type != fs::file_type::directory)
        throw FolderRefused(fmt::format("{} {} is {}; needed is a folder on a file system", what,
                                        path.string(), kind_of(type)));
}

}  // namespace

fs::path absolute_path(const fs::path& path) {
    if (path.empty())
        throw FolderRefused("an empty path was given for a folder");
    auto normal = fs::absolute(path).lexically_normal();
    return normal.has_filename() ? normal : normal.parent_path();  // "/a/b/" names /a/b
}

fs::path check_fresh_out(const fs::path& out) {
    constexpr std::string_view what = "the output folder";
    const auto path = absolute_path(out);
    auto existing = path;
    auto type = type_of(existing, what);
    while (type == fs::file_type::not_found && existing.has_relative_path()) {
        existing = existing.parent_path();
        type = type_of(existing, what);
    }
    check_is_folder(existing, type,
                    existing == path ? what : "the folder above the output folder,");
    if (existing == path && !fs::is_empty(path)) {
        const auto found = fs::directory_iterator(path)->path().filename();
        throw FolderRefused(fmt::format(
            "the output folder {} is not empty (it holds '{}'); give a new or empty folder, or "
            "--resume to go on with the run in it",
            path.string(), found.string()));
    }
    check_writable(existing, existing == path ? what : "the folder above the output folder,");
    return path;
}

fs::path check_nvme(const fs::path& nvme) {
    constexpr std::string_view what = "the --nvme folder";
    const auto path = absolute_path(nvme);
    const auto type = type_of(path, what);
    if (type == fs::file_type::not_found)
        throw FolderRefused(
            fmt::format("{} {} does not exist; create it on the drive that is to hold the state",
                        what, path.string()));
    check_is_folder(path, type, what);
    check_writable(path, what);
    return fs::canonical(path);
}

std::vector<fs::path> check_drives(const fs::path& first, const std::vector<fs::path>& further) {
    std::vector<fs::path> all;
    if (!first.empty() || !further.empty())
        all.push_back(check_nvme(first));
    for (const auto& folder : further) {
        auto path = check_nvme(folder);
        if (std::ranges::find(all, path) != all.end())
            throw FolderRefused(
                fmt::format("the --nvme folder {} is given twice; name each drive's folder once",
                            path.string()));
        all.push_back(std::move(path));
    }
    return all;
}

void check_planes(const StateFolder& folder, PlaneSet planes, SecondMoments second_moments) {
    const auto kept = folder.manifest().planes;
    if (const bool factored = folder.manifest().second_moments == SecondMoments::factored;
        factored != (second_moments == SecondMoments::factored))
        throw FolderRefused(
            fmt::format("{}: this run keeps {} second moments, its optimizer needs {}",
                        folder.folder().string(), factored ? "factored" : "no factored",
                        factored ? "none of them" : "them"));
    if (kept == planes)
        return;
    const bool averages = kept.contains(Plane::average);
    if (averages != planes.contains(Plane::average))
        throw FolderRefused(fmt::format(
            "{}: this run keeps {} average of its weights, and that is fixed when a run is made",
            folder.folder().string(), averages ? "an" : "no"));
    throw FolderRefused(fmt::format(
        "{}: this run keeps {} planes per parameter with state in {}, its optimizer needs {} "
        "with state in {}",
        folder.folder().string(), kept.size(), cpu_optim::state_format_name(state_format_of(kept)),
        planes.size(), cpu_optim::state_format_name(state_format_of(planes))));
}

}  // namespace spillway::offload::detail
