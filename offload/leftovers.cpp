// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <optional>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "nvme/direct_file.h"
#include "offload/detail/state/folder_checks.h"
#include "offload/detail/state/folder_lock.h"
#include "offload/detail/state/leftover_judge.h"
#include "offload/detail/state/manifest.h"
#include "offload/detail/state/run_files.h"
#include "offload/detail/state/scratch_file.h"
#include "offload/state_folder.h"

namespace spillway::offload {
namespace {

namespace fs = std::filesystem;
using detail::FolderLock;

/// The folder's lock for as long as it is cleared up. A folder without a lock file is nobody's.
class Hold {
  public:
    explicit Hold(const fs::path& folder)
        : has_lock_file_(!detail::is_missing(folder / FolderLock::file_name)),
          lock_(has_lock_file_ ? FolderLock::probe(folder) : std::nullopt) {}
    [[nodiscard]] bool busy() const { return has_lock_file_ && !lock_; }

  private:
    bool has_lock_file_;
    std::optional<FolderLock> lock_;
};

bool is_busy(const fs::path& folder) {
    try {
        return Hold(folder).busy();
    } catch (const std::system_error&) {
        return true;  // a lock file that we may not read is somebody else's
    }
}

void add_unnamed_files(const fs::path& folder, std::vector<Leftover>& found) {
    try {
        for (const auto& file : detail::unnamed_files(folder)) {
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
    if (auto reason = detail::leftover_reason(folder))
        found.push_back({folder, detail::own_bytes(folder), std::move(*reason)});
    else if (detail::is_extents_folder(folder) || detail::is_inner_extents_folder(folder))
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
        if (const auto manifest = detail::manifest_or_draft(folder)) {
            for (const auto& extents : manifest->all_extents())
                if (detail::is_extents_folder(extents))
                    add_if_leftover(extents, found);
        }
        return;
    }
    if (detail::is_missing(folder / detail::manifest_name))
        return;
    add_move_leftovers(folder, found);
    if (fs::is_regular_file(fs::symlink_status(draft)))
        found.push_back({draft, fs::file_size(draft), "a temporary file of an interrupted write"});
}

/// Beside the folders of runs, and in those, living ones too.
void add_scratch_files(const fs::path& folder, std::vector<Leftover>& found) {
    std::vector<fs::path> places{folder,
                                 folder / StateFolder::folder_name / detail::inner_extents_name};
    if (const auto extents = folder / StateFolder::extents_name; detail::is_plain_folder(extents))
        for (const auto& entry : fs::directory_iterator(extents))
            if (detail::is_extents_folder(entry.path()))
                places.push_back(entry.path());
    for (const auto& place : places) {
        if (!detail::is_plain_folder(place))
            continue;
        for (const auto& entry : fs::directory_iterator(place))
            if (detail::is_left_scratch_file(entry.path()))
                found.push_back(
                    {entry.path(), 0, "a run was killed while it made a file without a name"});
    }
}

[[noreturn]] void refuse_removal(const fs::path& path) {
    throw FolderRefused(fmt::format(
        "{} is in use, or no leftover any more; list the leftovers again", path.string()));
}

void remove_leftover_folder(const fs::path& folder) {
    const Hold hold(folder);
    if (hold.busy() || !detail::leftover_reason(folder))
        refuse_removal(folder);
    if (detail::is_extents_folder(folder) || detail::is_inner_extents_folder(folder))
        detail::remove_extents_folder(folder);
    else
        detail::remove_state_folder(folder);
}

void remove_draft(const fs::path& draft) {
    const auto folder = draft.parent_path();
    const Hold hold(folder);
    if (hold.busy() || detail::is_missing(folder / detail::manifest_name))
        refuse_removal(draft);
    fs::remove(draft);
}

void remove_unnamed_file(const fs::path& file) {
    const auto folder = file.parent_path();
    const Hold hold(folder);
    const auto files = hold.busy() ? std::vector<fs::path>{} : detail::unnamed_files(folder);
    if (std::ranges::find(files, file) == files.end())
        refuse_removal(file);
    fs::remove(file);
    nvme::sync_folder(folder);
}

void remove_scratch_file(const fs::path& file) {
    if (detail::is_left_scratch_file(file))
        fs::remove(file);
    else if (!detail::is_missing(file))
        refuse_removal(file);
}

/// Extents of this OUT that never saw a commit; others' and living ones are passed over.
void remove_uncommitted_extents(const fs::path& nvme, const fs::path& out) {
    const auto all = nvme / StateFolder::extents_name;
    if (!detail::is_plain_folder(all))
        return;
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(all))
        if (detail::is_plain_folder(entry.path()) && detail::is_extents_folder(entry.path()))
            folders.push_back(entry.path());
    for (const auto& folder : folders) {
        const auto note = detail::read_note(folder);
        if (!note || note->out != out || note->sequence != 0)
            continue;
        if (const Hold hold(folder); !hold.busy())
            detail::remove_extents_folder(folder);
    }
}

void remove_uncommitted_run(const fs::path& state_folder) {
    const FolderLock lock(state_folder, LockMode::exclusive);
    const auto manifest = detail::manifest_or_draft(state_folder);
    if (detail::has_committed(state_folder, manifest))
        throw FolderRefused(
            fmt::format("{} holds a run that has committed; it is not removed. Resume it, give "
                        "another folder, or remove it by hand",
                        state_folder.string()));
    for (const auto& extents : manifest ? manifest->all_extents() : std::vector<fs::path>{}) {
        if (!detail::is_extents_folder(extents) || !detail::is_plain_folder(extents))
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
            if (detail::is_extents_folder(entry.path()))
                add_if_leftover(entry.path(), found);
    add_scratch_files(real, found);
    return found;
}

void remove_leftovers(const std::vector<Leftover>& leftovers) {
    for (const auto& [path, bytes, reason] : leftovers) {
        if (detail::is_scratch_name(path.filename().string())) {
            remove_scratch_file(path);
            continue;
        }
        const bool in_state = path.parent_path().filename() == StateFolder::folder_name;
        const bool is_draft = in_state && path.filename() == detail::manifest_draft_name;
        const bool is_folder = detail::is_extents_folder(path) ||
                               detail::is_inner_extents_folder(path) ||
                               path.filename() == StateFolder::folder_name;
        const bool is_file = detail::is_extents_folder(path.parent_path()) ||
                             detail::is_inner_extents_folder(path.parent_path());
        if (!is_draft && !is_folder && !is_file)
            throw std::invalid_argument(
                fmt::format("{} is nothing that Spillway makes; it is not removed", path.string()));
        if (detail::is_missing(path))
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
