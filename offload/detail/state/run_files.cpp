// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/run_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <sys/stat.h>

#include "nvme/direct_file.h"
#include "offload/detail/files/durable_files.h"
#include "offload/detail/state/folder_lock.h"
#include "offload/detail/state/manifest.h"
#include "offload/detail/state/scratch_file.h"

namespace spillway::offload::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 2> record_names{"record.0", "record.1"};

/// In the order of removal: with the records goes what makes a run resumable, and the manifest,
/// which says where the extents are, outlives them.
constexpr std::array<const char*, 7> state_names{
    "record.0",    "record.1",           "table.0", "table.1", manifest_draft_name,
    manifest_name, FolderLock::file_name};

constexpr std::string_view extents_prefix = "extents.";

bool is_extents_file(const std::string& name) {
    return name.starts_with(extents_prefix) && name.size() > extents_prefix.size() &&
           name.find_first_not_of("0123456789", extents_prefix.size()) == std::string::npos;
}

/// That no commit names.
bool is_passing_file(const fs::path& path) {
    return path.filename() == former_gradients_name || is_left_scratch_file(path);
}

std::vector<fs::path> own_files(const fs::path& folder) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const auto name = entry.path().filename().string();
        const bool ours =
            is_extents_file(name) || is_passing_file(entry.path()) ||
            std::find(state_names.begin(), state_names.end(), name) != state_names.end();
        if (ours && entry.symlink_status().type() == fs::file_type::regular)
            files.push_back(entry.path());
    }
    return files;
}

/// Removes the folder if it is empty.
void remove_empty(const fs::path& folder) {
    std::error_code error;
    fs::remove(folder, error);
    if (error && error != std::errc::directory_not_empty)
        throw fs::filesystem_error("cannot remove the folder", folder, error);
    nvme::sync_folder(folder.parent_path());
}

void remove_if_regular(const fs::path& path) {
    if (fs::symlink_status(path).type() == fs::file_type::regular)
        fs::remove(path);
}

}  // namespace

bool is_plain_folder(const fs::path& path) {
    return fs::symlink_status(path).type() == fs::file_type::directory;
}

bool holds_extents(const fs::path& folder) {
    return std::ranges::any_of(fs::directory_iterator(folder), [](const auto& entry) {
        return is_extents_file(entry.path().filename().string());
    });
}

std::vector<fs::path> extents_files(const fs::path& folder) {
    auto files = own_files(folder);
    std::erase_if(files,
                  [](const fs::path& file) { return !is_extents_file(file.filename().string()); });
    return files;
}

std::uint64_t next_extents_number(const fs::path& folder) {
    std::uint64_t next = 0;
    if (!is_plain_folder(folder))
        return next;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const auto name = entry.path().filename().string();
        if (!is_extents_file(name))
            continue;
        std::uint32_t number = 0;  // none is ever larger
        std::from_chars(name.data() + extents_prefix.size(), name.data() + name.size(), number);
        next = std::max(next, std::uint64_t{number} + 1);
    }
    return next;
}

bool never_committed(const fs::path& state_folder) {
    constexpr std::size_t record_limit_bytes = 65536;
    for (const char* name : record_names) {
        const auto path = state_folder / name;
        if (!fs::exists(fs::symlink_status(path)))
            continue;
        const auto text = read_text(path, record_limit_bytes);
        if (text.find_first_not_of('\0') != std::string::npos)
            return false;
    }
    return true;
}

void remove_extents_folder(const fs::path& folder) {
    if (!is_plain_folder(folder))
        return;
    for (const auto& file : own_files(folder))
        if (is_extents_file(file.filename().string()) || is_passing_file(file))
            fs::remove(file);
    remove_if_regular(folder / FolderLock::file_name);
    remove_empty(folder);
}

void remove_state_folder(const fs::path& folder) {
    if (!is_plain_folder(folder))
        return;
    remove_extents_folder(folder / inner_extents_name);
    for (const char* name : state_names)
        remove_if_regular(folder / name);
    remove_empty(folder);
}

std::uint64_t allocated_bytes(const fs::path& file) {
    constexpr std::uint64_t block_bytes = 512;  // of st_blocks, whatever the file system's own are
    struct stat status = {};
    return ::lstat(file.c_str(), &status) == 0
               ? static_cast<std::uint64_t>(status.st_blocks) * block_bytes
               : 0;
}

std::uint64_t own_bytes(const fs::path& folder) {
    if (!is_plain_folder(folder))
        return 0;
    std::uint64_t bytes = own_bytes(folder / inner_extents_name);
    for (const auto& file : own_files(folder))
        bytes += allocated_bytes(file);
    return bytes;
}

}  // namespace spillway::offload::detail
