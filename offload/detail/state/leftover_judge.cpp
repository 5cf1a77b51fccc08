// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/leftover_judge.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "offload/detail/state/folder_checks.h"
#include "offload/detail/state/folder_lock.h"
#include "offload/detail/state/run_files.h"
#include "offload/state_folder.h"

namespace spillway::offload::detail {

namespace fs = std::filesystem;

namespace {

std::optional<RunId> run_of_name(const fs::path& folder) {
    try {
        return RunId::parse(folder.filename().string());
    } catch (const std::invalid_argument&) {
        return std::nullopt;
    }
}

}  // namespace

bool is_missing(const fs::path& path) {
    std::error_code error;
    return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

bool is_extents_folder(const fs::path& path) {
    return path.parent_path().filename() == StateFolder::extents_name &&
           run_of_name(path).has_value();
}

bool is_inner_extents_folder(const fs::path& path) {
    return path.filename() == inner_extents_name &&
           path.parent_path().filename() == StateFolder::folder_name;
}

std::optional<ExtentsNote> read_note(const fs::path& folder) {
    try {
        return ExtentsNote::parse(
            read_text(folder / FolderLock::file_name, FolderLock::limit_bytes));
    } catch (const std::system_error&) {
        return std::nullopt;
    }
}

std::optional<Manifest> manifest_or_draft(const fs::path& state_folder) {
    if (!is_missing(state_folder / manifest_name))
        return read_manifest(state_folder, manifest_name);
    try {
        return read_manifest(state_folder, manifest_draft_name);
    } catch (const FolderRefused&) {
        return std::nullopt;
    }
}

bool has_committed(const fs::path& state_folder, const std::optional<Manifest>& manifest) {
    if (!never_committed(state_folder))
        return true;
    if (!manifest)
        return false;
    return std::ranges::any_of(manifest->all_extents(), [&](const fs::path& folder) {
        const auto note = read_note(folder);
        return note && note->run == manifest->run && note->sequence != 0;
    });
}

namespace {

std::optional<std::string> judge_state_folder(const fs::path& folder) {
    const auto manifest = manifest_or_draft(folder);
    if (has_committed(folder, manifest))
        return std::nullopt;
    return manifest ? fmt::format("run {} never committed", manifest->run.text())
                    : std::string("a run was killed while it was being created");
}

/// Whether all that the manifest names is there, and none of it is this folder by another path: the
/// run can do without it.
bool stands_elsewhere(const Manifest& manifest, const fs::path& extents) {
    const auto places = manifest.all_extents();
    for (std::size_t drive = 0; drive < places.size(); ++drive) {
        const auto note = read_note(places[drive]);
        if (!note || note->run != manifest.run || is_missing(manifest.extents_file(drive)) ||
            fs::equivalent(places[drive], extents))
            return false;
    }
    return true;
}

/// A folder that its run does not name. Only what a move made or left may go: anything else may be
/// a copy that somebody made.
std::optional<std::string> judge_unnamed(const ExtentsNote& note, const fs::path& extents,
                                         const Manifest& manifest) {
    const bool never_used = note.sequence == 0;
    if (!never_used &&
        std::ranges::find(manifest.former_extents, extents) == manifest.former_extents.end())
        return std::nullopt;
    if (!stands_elsewhere(manifest, extents))
        return std::nullopt;
    const auto out = note.out.string();
    return never_used ? fmt::format("the move of its run in {} to here was cut short", out)
                      : fmt::format("its run in {} has moved to other drives", out);
}

std::optional<std::string> judge_owner(const ExtentsNote& note, const fs::path& extents) {
    const auto state = note.out / StateFolder::folder_name;
    if (is_missing(state / manifest_name) && is_missing(state / manifest_draft_name))
        return fmt::format("its run's folder {} is gone (last commit: number {})",
                           note.out.string(), note.sequence);
    const auto manifest = manifest_or_draft(state);
    if (!manifest)
        return std::nullopt;
    if (manifest->run != note.run)
        return fmt::format("{} belongs to another run now (last commit: number {})",
                           note.out.string(), note.sequence);
    const auto all = manifest->all_extents();
    if (std::ranges::find(all, extents) == all.end())
        return is_missing(state / manifest_name) ? std::nullopt
                                                 : judge_unnamed(note, extents, *manifest);
    if (has_committed(state, manifest))
        return std::nullopt;
    return fmt::format("its run in {} never committed", note.out.string());
}

/// In the state folder itself: left there by a move to or from a drive.
std::optional<std::string> judge_inner_extents(const fs::path& folder) {
    const auto manifest = read_manifest(folder.parent_path(), manifest_name);
    const auto all = manifest.all_extents();
    const auto note = read_note(folder);
    if (std::ranges::find(all, folder) != all.end() || !stands_elsewhere(manifest, folder) ||
        (note ? note->run != manifest.run : holds_extents(folder)))
        return std::nullopt;
    return "it belongs to no layout of the run any more, or not yet: a move was cut short";
}

std::optional<std::string> judge_extents_folder(const fs::path& folder) {
    const auto run = run_of_name(folder);
    if (!run)
        return std::nullopt;
    const auto note = read_note(folder);
    if (note)
        return note->run == *run ? judge_owner(*note, folder) : std::nullopt;
    if (!holds_extents(folder))
        return "its run was killed while it was being created";
    return std::nullopt;
}

}  // namespace

std::optional<std::string> leftover_reason(const fs::path& folder) {
    try {
        return is_extents_folder(folder)         ? judge_extents_folder(folder)
               : is_inner_extents_folder(folder) ? judge_inner_extents(folder)
                                                 : judge_state_folder(folder);
    } catch (const std::runtime_error&) {
        return std::nullopt;  // unreadable or not understood: not ours to remove
    }
}

std::vector<fs::path> unnamed_files(const fs::path& folder) {
    const auto note = read_note(folder);
    if (!note)
        return {};
    const auto state = is_inner_extents_folder(folder) ? folder.parent_path()
                                                       : note->out / StateFolder::folder_name;
    const auto manifest = read_manifest(state, manifest_name);
    const auto all = manifest.all_extents();
    const auto place = std::ranges::find(all, folder);
    if (manifest.run != note->run || place == all.end())
        return {};
    const auto named = manifest.extents_file(static_cast<std::size_t>(place - all.begin()));
    auto files = extents_files(folder);
    if (std::erase(files, named) == 0)
        return {};
    return files;
}

}  // namespace spillway::offload::detail
