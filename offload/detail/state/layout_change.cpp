// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/layout_change.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "offload/detail/drives/extent_map.h"
#include "offload/detail/files/durable_files.h"
#include "offload/detail/state/manifest.h"
#include "offload/detail/state/run_files.h"
#include "offload/detail/state/state_folder_impl.h"

namespace spillway::offload::detail {
namespace {

namespace fs = std::filesystem;

Manifest next_manifest(const Manifest& present, const fs::path& state_folder,
                       const std::vector<fs::path>& drives) {
    auto next = present;
    next.former_extents = present.all_extents();
    for (const auto& place : present.former_extents) {
        const auto drive = place.parent_path().parent_path();  // one that is gone may come again
        if (is_plain_folder(place) || !is_plain_folder(drive))
            next.former_extents.push_back(place);
    }
    ++next.generation;
    next.more_extents.clear();
    next.extents_folder = state_folder / inner_extents_name;
    for (std::size_t drive = 0; drive < drives.size(); ++drive) {
        auto place = drives[drive] / StateFolder::extents_name / present.run.text();
        if (drive == 0)
            next.extents_folder = std::move(place);
        else
            next.more_extents.push_back(std::move(place));
    }
    next.region_tiles = region_tiles_for(ElementOrder(present.tensors).tiles(), drives.size());
    next.first_file = present.first_file + present.all_extents().size();
    for (const auto& place : next.all_extents())  // a copy of the run may have moved here too
        next.first_file = std::max(next.first_file, next_extents_number(place));
    return next;
}

/// Takes a folder away that the manifest of `run` does not name, unless somebody uses it or a copy
/// of the run may need it.
void give_up_place(const StateFolder::Impl& run, const fs::path& place) {
    if (!is_plain_folder(place))
        return;
    const bool has_lock_file = fs::exists(fs::symlink_status(place / FolderLock::file_name));
    const auto lock = has_lock_file ? FolderLock::probe(place) : std::optional<FolderLock>();
    if (has_lock_file && !lock)
        return;
    const auto note = lock ? ExtentsNote::parse(lock->read()) : std::nullopt;
    if (note ? may_give_up(*note, run.manifest.run, run.out()) : !holds_extents(place))
        remove_extents_folder(place);
}

/// The same for files in a folder that it does name, and holds.
void give_up_files(const StateFolder::Impl& run, const HeldExtents& held) {
    if (held.note.out != run.out())
        return;
    bool changed = false;
    for (const auto& file : extents_files(held.folder()))
        changed |= file != held.file && fs::remove(file);
    if (changed)
        nvme::sync_folder(held.folder());
}

/// Runs `action`; what cannot be reached now is left for later.
template <typename Action>
void if_reachable(const Action& action) {
    try {
        action();
    } catch (const std::system_error&) {
        // Only room is lost, and find_leftovers() finds it.
    }
}

bool names(const std::vector<fs::path>& places, const fs::path& place) {
    return std::ranges::find(places, place) != places.end();
}

}  // namespace

LayoutChange::LayoutChange(StateFolder& folder, const std::vector<fs::path>& drives)
    : folder_(folder),
      next_(next_manifest(folder.manifest(), folder.folder(), drives)),
      former_(folder.manifest()) {
    if (run().mode != LockMode::exclusive)
        throw std::logic_error(fmt::format(
            "the state in {} is to move, but is open for reading only", folder.folder().string()));
}

LayoutChange::~LayoutChange() {
    if (stage_ != Stage::made)
        return;
    try {
        undo();
    } catch (const std::exception&) {
        // The error that led here is the one to report; what stays is found by clear_former() and
        // find_leftovers().
    }
}

void LayoutChange::undo() {
    for (const auto& held : made_)
        remove_extents_folder(held.folder());
    for (const auto& file : files_)
        fs::remove(file);
    fs::remove(run().folder / manifest_draft_name);
    nvme::sync_folder(run().folder);
}

std::optional<std::size_t> LayoutChange::present_drive_in(const fs::path& place) const {
    const auto places = former_.all_extents();
    const auto found = std::ranges::find(places, place);
    if (found == places.end())
        return std::nullopt;
    return static_cast<std::size_t>(found - places.begin());
}

/// A folder of the next layout alone. It may be there, with foreign files in it, or as what a dead
/// process left.
HeldExtents LayoutChange::hold(const fs::path& file) const {
    const ExtentsNote note{next_.run, 0, ::getpid(), run().out()};
    const auto folder = file.parent_path();
    if (!is_plain_folder(folder))
        return make_held_extents(file, note);
    HeldExtents held{file, FolderLock(folder, LockMode::exclusive), note};
    const auto found = ExtentsNote::parse(held.lock.read());
    if (found ? !may_give_up(*found, next_.run, run().out()) : holds_extents(folder))
        throw FolderRefused(fmt::format(
            "{} holds the state of {}, so that this run cannot move there; name another folder, or "
            "remove that one if it is of no use",
            folder.string(), found ? "a copy of this run in " + found->out.string() : "a run"));
    held.lock.write(note.text());
    nvme::sync_folder(folder);
    return held;
}

std::vector<nvme::DirectFile> LayoutChange::make_extents() {
    stage_ = Stage::made;
    write_file(run().folder / manifest_draft_name, manifest_text(next_, run().folder));
    nvme::sync_folder(run().folder);
    std::vector<nvme::DirectFile> files;
    const auto places = next_.all_extents();
    for (std::size_t drive = 0; drive < places.size(); ++drive) {
        const auto file = next_.extents_file(drive);
        if (!present_drive_in(places[drive]))
            made_.push_back(hold(file));
        files.emplace_back(file, nvme::OpenMode::create_exclusive, nvme::DirectMode::automatic);
        files_.push_back(file);
        nvme::sync_folder(places[drive]);
    }
    return files;
}

void LayoutChange::publish(std::uint64_t sequence) {
    auto& present = run();
    std::vector<HeldExtents> extents;
    std::vector<bool> stays(present.extents.size(), false);
    const auto places = next_.all_extents();
    extents.reserve(places.size());
    former_extents_.reserve(present.extents.size());
    publish_file(present.folder / manifest_draft_name, present.folder / manifest_name);

    stage_ = Stage::published;
    auto made = made_.begin();
    for (std::size_t drive = 0; drive < places.size(); ++drive) {
        const auto shared = present_drive_in(places[drive]);
        extents.push_back(std::move(shared ? present.extents[*shared] : *made++));
        extents.back().file = next_.extents_file(drive);
        if (shared)
            stays[*shared] = true;
    }
    for (std::size_t drive = 0; drive < present.extents.size(); ++drive) {
        if (!stays[drive])
            former_extents_.push_back(std::move(present.extents[drive]));
    }
    present.extents.swap(extents);
    present.manifest = next_;
    folder_.note_commit(sequence);
}

std::string LayoutChange::remove_former() {
    std::string left;
    const auto leave = [&left](const fs::path& folder, const std::string& why) {
        left += fmt::format("{}{} is left: {}", left.empty() ? "" : "; ", folder.string(), why);
    };
    for (const auto& held : former_extents_) {
        if (held.note.out != run().out()) {
            leave(held.folder(),
                  fmt::format("a copy of the run lives there, in {}", held.note.out.string()));
            continue;
        }
        try {
            remove_extents_folder(held.folder());
        } catch (const std::system_error& error) {
            leave(held.folder(), error.what());
        }
    }
    former_extents_.clear();
    for (std::size_t drive = 0; drive < former_.all_extents().size(); ++drive) {
        const auto file = former_.extents_file(drive);
        if (!names(next_.all_extents(), file.parent_path()))
            continue;
        try {
            fs::remove(file);
            nvme::sync_folder(file.parent_path());
        } catch (const std::system_error& error) {
            leave(file, error.what());
        }
    }
    return left;
}

void LayoutChange::clear_former(StateFolder& folder) {
    const auto& run = *folder.impl_;
    const auto draft = run.folder / manifest_draft_name;
    auto places = run.manifest.former_extents;
    const bool has_draft = fs::is_regular_file(fs::symlink_status(draft));
    if (has_draft) {
        try {
            const auto drafted = read_manifest(run.folder, manifest_draft_name).all_extents();
            places.insert(places.end(), drafted.begin(), drafted.end());
        } catch (const FolderRefused&) {
            // It was cut short, before anything else was made.
        }
    }
    for (const auto& place : places) {
        if (!names(run.manifest.all_extents(), place))
            if_reachable([&] { give_up_place(run, place); });
    }
    for (const auto& held : run.extents)
        if_reachable([&] { give_up_files(run, held); });
    if (has_draft)
        if_reachable([&] { fs::remove(draft); });
}

}  // namespace spillway::offload::detail
