// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/held_extents.h"

#include <utility>

#include <fmt/format.h>

#include "nvme/direct_file.h"
#include "offload/detail/files/durable_files.h"
#include "offload/detail/state/manifest.h"

namespace spillway::offload::detail {
namespace {

namespace fs = std::filesystem;

FolderLock lock_extents(const Manifest& manifest, const fs::path& folder, LockMode mode) {
    if (!fs::exists(folder / FolderLock::file_name))
        throw FolderRefused(
            fmt::format("the extents of run {} are missing: there is no {}. Without them the run "
                        "cannot go on; mount "
                        "or restore the folder there",
                        manifest.run.text(), (folder / FolderLock::file_name).string()));
    return {folder, mode};
}

ExtentsNote read_note(const FolderLock& lock, const Manifest& manifest, const fs::path& folder) {
    const auto path = folder.string();
    const auto note = ExtentsNote::parse(lock.read());
    if (!note)
        throw FolderRefused(fmt::format(
            "the lock file in {} is damaged: it does not say whose extents these are. Restore it",
            path));
    if (note->run != manifest.run)
        throw FolderRefused(
            fmt::format("the extents in {} belong to run {}, needed are those of run {}", path,
                        note->run.text(), manifest.run.text()));
    return *note;
}

}  // namespace

std::vector<HeldExtents> hold_extents(const Manifest& manifest, LockMode mode) {
    std::vector<HeldExtents> extents;
    for (const auto& place : manifest.all_extents()) {
        auto lock = lock_extents(manifest, place, mode);
        auto note = read_note(lock, manifest, place);
        extents.push_back(
            {manifest.extents_file(extents.size()), std::move(lock), std::move(note)});
        if (extents.back().note.sequence != 0 && !fs::exists(extents.back().file))
            throw FolderRefused(fmt::format(
                "{} is missing: it holds the state of run {}, which cannot go on without "
                "it. Restore it",
                extents.back().file.string(), manifest.run.text()));
    }
    return extents;
}

void make_new_folder(const fs::path& folder) {
    make_folders(folder.parent_path());
    if (!fs::create_directory(folder))
        throw FolderRefused(
            fmt::format("{} has just been created by another process", folder.string()));
    nvme::sync_folder(folder.parent_path());
}

HeldExtents make_held_extents(const fs::path& file, const ExtentsNote& note) {
    const auto folder = file.parent_path();
    make_new_folder(folder);
    HeldExtents held{file, FolderLock(folder, LockMode::exclusive), note};
    held.lock.write(note.text());
    nvme::sync_folder(folder);
    return held;
}

bool holds_run_of(const fs::path& out, const RunId& run) {
    try {
        return read_manifest(out / StateFolder::folder_name, manifest_name).run == run;
    } catch (const FolderRefused&) {
        return false;
    }
}

bool may_give_up(const ExtentsNote& note, const RunId& run, const fs::path& out) {
    return note.run == run && (note.out == out || !holds_run_of(note.out, run));
}

}  // namespace spillway::offload::detail
