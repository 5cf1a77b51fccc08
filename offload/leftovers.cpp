// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "nvme/direct_file.h"
#include "offload/detail/state/extents_note.h"
#include "offload/detail/state/folder_checks.h"
#include "offload/detail/state/folder_lock.h"
#include "offload/detail/state/manifest.h"
#include "offload/detail/state/run_files.h"
#include "offload/state_folder.h"

namespace spillway::offload {
namespace {

namespace fs = std::filesystem;
using detail::ExtentsNote;
using detail::FolderLock;

bool is_missing(const fs::path& path) {
    std::error_code error;
    return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

std::optional<RunId> run_of_name(const fs::path& folder) {
    try {
        return RunId::parse(folder.filename().string());
    } catch (const std::invalid_argument&) {
        return std::nullopt;
    }
}

std::optional<ExtentsNote> read_note(const fs::path& folder) {
    try {
        return ExtentsNote::parse(
            detail::read_text(folder / FolderLock::file_name, FolderLock::limit_bytes));
    } catch (const std::system_error&) {
        return std::nullopt;
    }
}

/// The manifest, or else the draft of a run that was killed while it was being created. A manifest
/// that is there but cannot be used is FolderRefused; a draft like that was cut short before
/// anything else was made.
std::optional<Manifest> manifest_or_draft(const fs::path& state_folder) {
    if (!is_missing(state_folder / detail::manifest_name))
        return detail::read_manifest(state_folder, detail::manifest_name);
    try {
        return detail::read_manifest(state_folder, detail::manifest_draft_name);
    } catch (const FolderRefused&) {
        return std::nullopt;
    }
}

bool has_committed(const fs::path& state_folder, const std::optional<Manifest>& manifest) {
    if (!detail::never_committed(state_folder))
        return true;
    if (!manifest)
        return false;
    return std::ranges::any_of(manifest->all_extents(), [&](const fs::path& folder) {
        const auto note = read_note(folder);
        return note && note->run == manifest->run && note->sequence != 0;
    });
}

/// The folder's lock for as long as it is cleared up. A folder without a lock file is nobody's.
class Hold {
  public:
    explicit Hold(const fs::path& folder)
        : has_lock_file_(!is_missing(folder / FolderLock::file_name)),
          lock_(has_lock_file_ ? FolderLock::probe(folder) : std::nullopt) {}
    [[nodiscard]] bool busy() const { return has_lock_file_ && !lock_; }

  private:
    bool has_lock_file_;
    std::optional<FolderLock> lock_;
};

// The judges say why a folder is a leftover; nothing if it is not, or if they do not understand it.
// Their caller holds the folder's lock.

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
    if (is_missing(state / detail::manifest_name) &&
        is_missing(state / detail::manifest_draft_name))
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
        return is_missing(state / detail::manifest_name) ? std::nullopt
                                                         : judge_unnamed(note, extents, *manifest);
    if (has_committed(state, manifest))
        return std::nullopt;
    return fmt::format("its run in {} never committed", note.out.string());
}

/// In the state folder itself: left there by a move to or from a drive.
std::optional<std::string> judge_inner_extents(const fs::path& folder) {
    const auto manifest = detail::read_manifest(folder.parent_path(), detail::manifest_name);
    const auto all = manifest.all_extents();
    const auto note = read_note(folder);
    if (std::ranges::find(all, folder) != all.end() || !stands_elsewhere(manifest, folder) ||
        (note ? note->run != manifest.run : detail::holds_extents(folder)))
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
    if (!detail::holds_extents(folder))
        return "its run was killed while it was being created";
    return std::nullopt;
}

bool is_inner_extents_folder(const fs::path& path) {
    return path.filename() == detail::inner_extents_name &&
           path.parent_path().filename() == StateFolder::folder_name;
}

bool is_extents_folder(const fs::path& path) {
    return path.parent_path().filename() == StateFolder::extents_name &&
           run_of_name(path).has_value();
}

/// Files that a move made or left in a folder that the run's layout does name.
std::vector<fs::path> unnamed_files(const fs::path& folder) {
    const auto note = read_note(folder);
    if (!note)
        return {};
    const auto state = is_inner_extents_folder(folder) ? folder.parent_path()
                                                       : note->out / StateFolder::folder_name;
    const auto manifest = detail::read_manifest(state, detail::manifest_name);
    const auto all = manifest.all_extents();
    const auto place = std::ranges::find(all, folder);
    if (manifest.run != note->run || place == all.end())
        return {};
    const auto named = manifest.extents_file(static_cast<std::size_t>(place - all.begin()));
    auto files = detail::extents_files(folder);
    if (std::erase(files, named) == 0)
        return {};
    return files;
}

std::optional<std::string> judge(const fs::path& folder) {
    try {
        return is_extents_folder(folder)         ? judge_extents_folder(folder)
               : is_inner_extents_folder(folder) ? judge_inner_extents(folder)
                                                 : judge_state_folder(folder);
    } catch (const std::runtime_error&) {
        return std::nullopt;  // unreadable or not understood: not ours to remove
    }
}

bool is_busy(const fs::path& folder) {
    try {
        return Hold(folder).busy();
    } catch (const std::system_error&) {
        return true;  // a lock file that we may not read is somebody else's
    }
}

void add_unnamed_files(const fs::path& folder, std::vector<Leftover>& found) {
    try {
        for (const auto& file : unnamed_files(folder)) {
            if (std::ranges::find(found, file, &Leftover::path) == found.end())
                found.push_back({file, detail::allocated_bytes(file),
                                 "it belongs to no layout of its run: a move was cut short"});
        }
    } catch (const std::runtime_error&) {
        // Unreadable or not understood: not ours to remove.
    }
}

void add_if_leftover(const fs::path& folder, std::vector<Leftover>& found) {
    const bool known =
        std::ranges::any_of(found, [&](const Leftover& other) { return other.path == folder; });
    if (known || !detail::is_plain_folder(folder) || is_busy(folder))
        return;
    if (auto reason = judge(folder))
        found.push_back({folder, detail::own_bytes(folder), std::move(*reason)});
    else if (is_extents_folder(folder) || is_inner_extents_folder(folder))
        add_unnamed_files(folder, found);
}

/// What a move of a living run was cut short in, here and on the drives that its papers name.
void add_move_leftovers(const fs::path& folder, std::vector<Leftover>& found) {
    std::vector<fs::path> places{folder / detail::inner_extents_name};
    for (const auto* name : {detail::manifest_name, detail::manifest_draft_name}) {
        try {
            const auto manifest = detail::read_manifest(folder, name);
            for (const auto& list : {manifest.all_extents(), manifest.former_extents})
                places.insert(places.end(), list.begin(), list.end());
        } catch (const FolderRefused&) {
            // Missing, or not understood: it names no place.
        }
    }
    for (const auto& place : places) {
        try {
            add_if_leftover(place, found);
        } catch (const std::system_error&) {
            // On a drive that cannot be reached now.
        }
    }
}

void add_state_leftovers(const fs::path& folder, std::vector<Leftover>& found) {
    if (!detail::is_plain_folder(folder) || is_busy(folder))
        return;
    const auto before = found.size();
    add_if_leftover(folder, found);
    const auto draft = folder / detail::manifest_draft_name;
    if (found.size() != before) {
        if (const auto manifest = manifest_or_draft(folder)) {
            for (const auto& extents : manifest->all_extents())
                if (is_extents_folder(extents))
                    add_if_leftover(extents, found);
        }
        return;
    }
    if (is_missing(folder / detail::manifest_name))
        return;
    add_move_leftovers(folder, found);
    if (fs::is_regular_file(fs::symlink_status(draft)))
        found.push_back({draft, fs::file_size(draft), "a temporary file of an interrupted write"});
}

[[noreturn]] void refuse_removal(const fs::path& path) {
    throw FolderRefused(fmt::format(
        "{} is in use, or no leftover any more; list the leftovers again", path.string()));
}

void remove_leftover_folder(const fs::path& folder) {
    const Hold hold(folder);
    if (hold.busy() || !judge(folder))
        refuse_removal(folder);
    if (is_extents_folder(folder) || is_inner_extents_folder(folder))
        detail::remove_extents_folder(folder);
    else
        detail::remove_state_folder(folder);
}

void remove_draft(const fs::path& draft) {
    const auto folder = draft.parent_path();
    const Hold hold(folder);
    if (hold.busy() || is_missing(folder / detail::manifest_name))
        refuse_removal(draft);
    fs::remove(draft);
}

void remove_unnamed_file(const fs::path& file) {
    const auto folder = file.parent_path();
    const Hold hold(folder);
    const auto files = hold.busy() ? std::vector<fs::path>{} : unnamed_files(folder);
    if (std::ranges::find(files, file) == files.end())
        refuse_removal(file);
    fs::remove(file);
    nvme::sync_folder(folder);
}

/// Extents of this OUT that never saw a commit; others' and living ones are passed over.
void remove_uncommitted_extents(const fs::path& nvme, const fs::path& out) {
    const auto all = nvme / StateFolder::extents_name;
    if (!detail::is_plain_folder(all))
        return;
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(all))
        if (detail::is_plain_folder(entry.path()) && is_extents_folder(entry.path()))
            folders.push_back(entry.path());
    for (const auto& folder : folders) {
        const auto note = read_note(folder);
        if (!note || note->out != out || note->sequence != 0)
            continue;
        if (const Hold hold(folder); !hold.busy())
            detail::remove_extents_folder(folder);
    }
}

void remove_uncommitted_run(const fs::path& state_folder) {
    const FolderLock lock(state_folder, LockMode::exclusive);
    const auto manifest = manifest_or_draft(state_folder);
    if (has_committed(state_folder, manifest))
        throw FolderRefused(
            fmt::format("{} holds a run that has committed; it is not removed. Resume it, give "
                        "another folder, or remove it by hand",
                        state_folder.string()));
    for (const auto& extents : manifest ? manifest->all_extents() : std::vector<fs::path>{}) {
        if (!is_extents_folder(extents) || !detail::is_plain_folder(extents))
            continue;
        const FolderLock extents_lock(extents, LockMode::exclusive);
        detail::remove_extents_folder(extents);
    }
    detail::remove_state_folder(state_folder);
}

}  // namespace

void StateFolder::start_over(const fs::path& out, const fs::path& nvme,
                             const std::vector<fs::path>& more_nvme) {
    const auto absolute_out = detail::absolute_path(out);
    const auto state_folder = absolute_out / folder_name;
    const auto drives = detail::check_drives(nvme, more_nvme);
    if (detail::is_plain_folder(state_folder))
        remove_uncommitted_run(state_folder);
    for (const auto& drive : drives)
        remove_uncommitted_extents(drive, absolute_out);
}

std::vector<Leftover> find_leftovers(const fs::path& folder) {
    const auto absolute = detail::absolute_path(folder);
    if (!fs::is_directory(absolute))
        throw FolderRefused(fmt::format("{} is no folder; needed is an output or an --nvme folder",
                                        absolute.string()));
    const auto real = fs::canonical(absolute);  // as extents are named in manifests
    std::vector<Leftover> found;
    add_state_leftovers(real / StateFolder::folder_name, found);
    const auto extents = real / StateFolder::extents_name;
    if (detail::is_plain_folder(extents))
        for (const auto& entry : fs::directory_iterator(extents))
            if (is_extents_folder(entry.path()))
                add_if_leftover(entry.path(), found);
    return found;
}

void remove_leftovers(const std::vector<Leftover>& leftovers) {
    for (const auto& [path, bytes, reason] : leftovers) {
        const bool in_state = path.parent_path().filename() == StateFolder::folder_name;
        const bool is_draft = in_state && path.filename() == detail::manifest_draft_name;
        const bool is_folder = is_extents_folder(path) || is_inner_extents_folder(path) ||
                               path.filename() == StateFolder::folder_name;
        const bool is_file =
            is_extents_folder(path.parent_path()) || is_inner_extents_folder(path.parent_path());
        if (!is_draft && !is_folder && !is_file)
            throw std::invalid_argument(
                fmt::format("{} is nothing that Spillway makes; it is not removed", path.string()));
        if (is_missing(path))
            continue;
        if (is_draft)
            remove_draft(path);
        else if (is_file)
            remove_unnamed_file(path);
        else
            remove_leftover_folder(path);
    }
}

}  // namespace spillway::offload
