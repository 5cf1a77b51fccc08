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
#include "offload/detail/drives/extent_map.h"
#include "offload/detail/files/durable_files.h"
#include "offload/detail/state/extents_note.h"
#include "offload/detail/state/folder_checks.h"
#include "offload/detail/state/folder_lock.h"
#include "offload/detail/state/held_extents.h"
#include "offload/detail/state/manifest.h"
#include "offload/detail/state/run_files.h"
#include "offload/detail/state/state_folder_impl.h"

namespace spillway::offload {
namespace {

namespace fs = std::filesystem;
using detail::ExtentsNote;
using detail::FolderLock;

void write_pid(FolderLock& lock) {
    lock.write(fmt::format("pid {}\n", ::getpid()));
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

}  // namespace

std::vector<fs::path> Manifest::all_extents() const {
    std::vector<fs::path> folders{extents_folder};
    folders.insert(folders.end(), more_extents.begin(), more_extents.end());
    return folders;
}

fs::path Manifest::extents_file(std::size_t drive) const {
    const auto& folder = drive == 0 ? extents_folder : more_extents.at(drive - 1);
    return folder / fmt::format("extents.{}", first_file + drive);
}

StateFolder StateFolder::create(const fs::path& out, const fs::path& nvme,
                                std::vector<TensorSpec> tensors, std::string durability,
                                std::string client_settings, PlaneSet planes,
                                const std::vector<fs::path>& more_nvme,
                                std::optional<AverageBasis> average, SecondMoments second_moments) {
    if (durability != "on" && durability != "off")
        throw std::invalid_argument(
            fmt::format("durability is '{}', needed is 'on' or 'off'", durability));
    const auto tiles = ElementOrder(tensors).tiles();  // refuses what could not be read back
    const auto fresh_out = detail::check_fresh_out(out);
    const auto folder = fresh_out / folder_name;
    Manifest manifest{.run = RunId::random(),
                      .tensors = std::move(tensors),
                      .planes = planes,
                      .average = average,
                      .second_moments = second_moments,
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

    detail::make_new_folder(folder);
    std::optional<FolderLock> state_lock;  // both outlive the draft, so that it is removed locked
    std::vector<detail::HeldExtents> extents;
    Draft draft(folder, manifest.all_extents());
    write_pid(state_lock.emplace(folder, LockMode::exclusive));
    detail::write_file(draft_path, text);
    nvme::sync_folder(folder);
    const ExtentsNote note{manifest.run, 0, ::getpid(), fresh_out};
    while (extents.size() < manifest.all_extents().size())
        extents.push_back(detail::make_held_extents(manifest.extents_file(extents.size()), note));
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
    auto extents = detail::hold_extents(manifest, mode);
    if (mode == LockMode::exclusive) {
        write_pid(state_lock);
        for (auto& [file, lock, note] : extents) {
            note.pid = ::getpid();
            if (!detail::holds_run_of(note.out, manifest.run))
                note.out =
                    absolute_out;  // OUT was moved; a mere copy takes the extents over by a commit
            lock.write(note.text());
        }
    }
    return StateFolder(std::make_unique<Impl>(std::move(manifest), folder, mode,
                                              std::move(state_lock), std::move(extents)));
}

bool StateFolder::lies_on(const std::vector<fs::path>& nvme) const {
    std::vector<fs::path> needed;
    for (const auto& place : impl_->manifest.all_extents())
        if (place != impl_->folder / detail::inner_extents_name)
            needed.push_back(place.parent_path().parent_path());
    std::vector<fs::path> given;
    for (const auto& folder : nvme)
        given.push_back(detail::check_nvme(folder));
    return std::ranges::is_permutation(needed, given);
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
        impl_->extents, {},
        [](const detail::HeldExtents& extents) { return extents.note.sequence; });
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
