// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/state_folder.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "nvme/direct_file.h"
#include "offload/detail/durable_files.h"
#include "offload/detail/extent_map.h"
#include "offload/detail/extents_note.h"
#include "offload/detail/folder_checks.h"
#include "offload/detail/folder_lock.h"
#include "offload/detail/manifest.h"
#include "offload/detail/run_files.h"

namespace spillway::offload {
namespace {

namespace fs = std::filesystem;
using detail::ExtentsNote;
using detail::FolderLock;

void write_pid(FolderLock& lock) {
    lock.write(fmt::format("pid {}\n", ::getpid()));
}

/// A run's extents on one drive, held.
struct Extents {
    fs::path file;
    FolderLock lock;
    ExtentsNote note;
};

fs::path file_of(const fs::path& folder, std::size_t drive) {
    return folder / fmt::format("extents.{}", drive);
}

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

std::string text_of(const std::vector<fs::path>& folders) {
    std::string text;
    for (const auto& folder : folders)
        text += (text.empty() ? "" : ", ") + folder.string();
    return text;
}

bool holds_run_of(const fs::path& out, const RunId& run) {
    try {
        return detail::read_manifest(out / StateFolder::folder_name, detail::manifest_name).run ==
               run;
    } catch (const FolderRefused&) {
        return false;
    }
}

/// Parts of a run that is being created, removed again unless it is completed: a refusal leaves no
/// files behind. (A kill does; start_over() reclaims that.)
class Draft {
  public:
    Draft(fs::path state, std::vector<fs::path> extents)
        : state_(std::move(state)), extents_(std::move(extents)) {}
    Draft(const Draft&) = delete;
    Draft& operator=(const Draft&) = delete;
    ~Draft() {
        if (complete_)
            return;
        try {
            for (const auto& folder : extents_)
                detail::remove_extents_folder(folder);
            detail::remove_state_folder(state_);
        } catch (const std::exception&) {
            // The error that led here is the one to report; what stays is found by
            // find_leftovers().
        }
    }
    void complete() noexcept { complete_ = true; }

  private:
    fs::path state_;
    std::vector<fs::path> extents_;
    bool complete_ = false;
};

void make_new_folder(const fs::path& folder) {
    detail::make_folders(folder.parent_path());
    if (!fs::create_directory(folder))
        throw FolderRefused(
            fmt::format("{} has just been created by another process", folder.string()));
    nvme::sync_folder(folder.parent_path());
}

}  // namespace

std::vector<fs::path> Manifest::all_extents() const {
    std::vector<fs::path> folders{extents_folder};
    folders.insert(folders.end(), more_extents.begin(), more_extents.end());
    return folders;
}

class StateFolder::Impl {
  public:
    Manifest manifest;
    fs::path folder;
    LockMode mode;
    FolderLock state_lock;
    std::vector<Extents> extents;  ///< by drive
};

StateFolder StateFolder::create(const fs::path& out, const fs::path& nvme,
                                std::vector<TensorSpec> tensors, std::string durability,
                                std::string client_settings, PlaneSet planes,
                                const std::vector<fs::path>& more_nvme) {
    if (durability != "on" && durability != "off")
        throw std::invalid_argument(
            fmt::format("durability is '{}', needed is 'on' or 'off'", durability));
    const auto tiles = ElementOrder(tensors).tiles();  // refuses what could not be read back
    const auto fresh_out = detail::check_fresh_out(out);
    const auto folder = fresh_out / folder_name;
    Manifest manifest{.run = RunId::random(),
                      .tensors = std::move(tensors),
                      .planes = planes,
                      .extents_folder = {},
                      .more_extents = {},
                      .region_tiles = 0,
                      .durability = std::move(durability),
                      .client_settings = detail::normalised_settings(client_settings)};
    manifest.extents_folder = folder / detail::inner_extents_name;
    auto places = detail::check_drives(nvme, more_nvme);
    for (auto& place : places)
        place = place / extents_name / manifest.run.text();
    if (!places.empty()) {
        manifest.extents_folder = places.front();
        manifest.more_extents.assign(places.begin() + 1, places.end());
    }
    manifest.region_tiles = detail::region_tiles_for(tiles, 1 + more_nvme.size());
    const auto text = detail::manifest_text(manifest, folder);
    const auto draft_path = folder / detail::manifest_draft_name;

    make_new_folder(folder);
    std::optional<FolderLock> state_lock;  // both outlive the draft, so that it is removed locked
    std::vector<Extents> extents;
    Draft draft(folder, manifest.all_extents());
    write_pid(state_lock.emplace(folder, LockMode::exclusive));
    detail::write_file(draft_path, text);
    nvme::sync_folder(folder);
    const ExtentsNote note{manifest.run, 0, ::getpid(), fresh_out};
    for (const auto& place : manifest.all_extents()) {
        make_new_folder(place);
        extents.push_back(
            {file_of(place, extents.size()), FolderLock(place, LockMode::exclusive), note});
        extents.back().lock.write(note.text());
        nvme::sync_folder(place);
    }
    detail::publish_file(draft_path, folder / detail::manifest_name);
    draft.complete();
    return StateFolder(std::make_unique<Impl>(std::move(manifest), folder, LockMode::exclusive,
                                              std::move(*state_lock), std::move(extents)));
}

StateFolder StateFolder::open(const fs::path& out, LockMode mode) {
    const auto absolute_out = detail::absolute_path(out);
    const auto folder = absolute_out / folder_name;
    if (!fs::exists(folder / detail::manifest_name))
        throw FolderRefused(fmt::format("{} holds no run: there is no {}", absolute_out.string(),
                                        (folder / detail::manifest_name).string()));
    FolderLock state_lock(folder, mode);
    auto manifest = detail::read_manifest(folder, detail::manifest_name);
    std::vector<Extents> extents;
    for (const auto& place : manifest.all_extents()) {
        auto lock = lock_extents(manifest, place, mode);
        auto note = read_note(lock, manifest, place);
        extents.push_back({file_of(place, extents.size()), std::move(lock), std::move(note)});
        if (extents.back().note.sequence != 0 && !fs::exists(extents.back().file))
            throw FolderRefused(fmt::format(
                "{} is missing: it holds the state of run {}, which cannot go on without "
                "it. Restore it",
                extents.back().file.string(), manifest.run.text()));
    }
    if (mode == LockMode::exclusive) {
        write_pid(state_lock);
        for (auto& [file, lock, note] : extents) {
            note.pid = ::getpid();
            if (!holds_run_of(note.out, manifest.run))
                note.out =
                    absolute_out;  // OUT was moved; a mere copy takes the extents over by a commit
            lock.write(note.text());
        }
    }
    return StateFolder(std::make_unique<Impl>(std::move(manifest), folder, mode,
                                              std::move(state_lock), std::move(extents)));
}

void StateFolder::check_drives(const std::vector<fs::path>& nvme) const {
    std::vector<fs::path> needed;
    for (const auto& place : impl_->manifest.all_extents())
        needed.push_back(place.parent_path().parent_path());
    std::vector<fs::path> given;
    for (const auto& folder : nvme)
        given.push_back(detail::check_nvme(folder));
    const auto lacks = [](const std::vector<fs::path>& list, const fs::path& folder) {
        return std::ranges::find(list, folder) == list.end();
    };
    if (impl_->manifest.extents_folder == impl_->folder / detail::inner_extents_name)
        throw FolderRefused(
            fmt::format("the state of the run in {} lies in its own folder, not on a drive; name "
                        "no --nvme folder",
                        impl_->folder.string()));
    for (const auto& folder : needed)
        if (lacks(given, folder))
            throw FolderRefused(
                fmt::format("a part of the run's state lies in {}, which is not among the --nvme "
                            "folders; name it too, or leave the option out. (A run moves to other "
                            "drives by an export and a new run.)",
                            folder.string()));
    for (const auto& folder : given)
        if (lacks(needed, folder))
            throw FolderRefused(
                fmt::format("nothing of the run's state lies in {}: its drives are {}; name those, "
                            "or leave the option out. (A run moves to other drives by an export "
                            "and a new run.)",
                            folder.string(), text_of(needed)));
}

bool StateFolder::holds_run(const fs::path& out) {
    return fs::exists(
        fs::symlink_status(detail::absolute_path(out) / folder_name / detail::manifest_name));
}

StateFolder::StateFolder(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
StateFolder::StateFolder(StateFolder&&) noexcept = default;
StateFolder& StateFolder::operator=(StateFolder&&) noexcept = default;
StateFolder::~StateFolder() = default;

const Manifest& StateFolder::manifest() const noexcept {
    return impl_->manifest;
}
const fs::path& StateFolder::folder() const noexcept {
    return impl_->folder;
}
const fs::path& StateFolder::extents_folder() const noexcept {
    return impl_->manifest.extents_folder;
}
fs::path StateFolder::extents_file() const {
    return impl_->extents.front().file;
}
std::vector<fs::path> StateFolder::extents_folders() const {
    return impl_->manifest.all_extents();
}
std::vector<nvme::DirectFile> StateFolder::open_extents(nvme::OpenMode mode) const {
    std::vector<nvme::DirectFile> files;
    for (const auto& extents : impl_->extents)
        files.emplace_back(extents.file, mode, nvme::DirectMode::automatic);
    return files;
}

void StateFolder::note_commit(std::uint64_t sequence) {
    if (impl_->mode != LockMode::exclusive)
        throw std::logic_error(
            fmt::format("a commit is noted in {}, which is open for reading only",
                        impl_->manifest.extents_folder.string()));
    for (auto& [file, lock, note] : impl_->extents) {
        note.sequence = sequence;
        note.out = impl_->folder.parent_path();
        lock.write(note.text());
    }
}

void StateFolder::check_commit(std::uint64_t sequence, std::string_view damage) const {
    const auto newest = std::ranges::max_element(
        impl_->extents, {}, [](const Extents& extents) { return extents.note.sequence; });
    const auto& note = newest->note;
    if (note.sequence <= sequence)
        return;
    if (!damage.empty())
        throw IntegrityError(fmt::format(
            "{}. That was commit number {}; steps that followed it may have overwritten what "
            "number "
            "{} names, so that the run cannot go on from either. Restore the damaged file from a "
            "copy of the folder, or start anew in another one",
            damage, note.sequence, sequence));
    throw FolderRefused(
        fmt::format("{} is an old copy: its last commit is number {}, but the extents in {} "
                    "have seen number {} (from {}). "
                    "Use the folder that made it",
                    impl_->folder.string(), sequence, newest->file.parent_path().string(),
                    note.sequence, note.out.string()));
}

}  // namespace spillway::offload
