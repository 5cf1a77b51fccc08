// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "nvme/direct_file.h"
#include "offload/detail/state/held_extents.h"
#include "offload/state_folder.h"

namespace spillway::offload::detail {

/// The places of a run's next layout, made beside the present ones: nothing of them counts before
/// publish(), which is one rename. A drive that is in both keeps its folder; its files have other
/// numbers. Without publish() the object takes all of it away again; a kill leaves a draft of the
/// manifest that says where things are, which clear_former() and find_leftovers() follow. The
/// folder is held exclusively and outlives the object. Not thread-safe.
class LayoutChange {
  public:
    /// Writes nothing. `drives` as check_drives() gives them; none: the state folder.
    LayoutChange(StateFolder& folder, const std::vector<std::filesystem::path>& drives);
    ~LayoutChange();
    LayoutChange(const LayoutChange&) = delete;
    LayoutChange& operator=(const LayoutChange&) = delete;

    /// The next layout's.
    [[nodiscard]] const Manifest& manifest() const noexcept { return next_; }

    /// Makes the folders, held, and in each its file, empty. Throws FolderRefused for a folder that
    /// is in use, or that a copy of the run lives in, and std::system_error.
    [[nodiscard]] std::vector<nvme::DirectFile> make_extents();

    /// From here on the run is where manifest() says, with commit `sequence`. That commit and what
    /// it names must be durable.
    void publish(std::uint64_t sequence);

    /// After publish(): takes the former layout away. What could not be, and why, for people; ""
    /// if nothing is left. Nothing is lost then but room, which find_leftovers() finds.
    [[nodiscard]] std::string remove_former();

    /// Takes away what changes that were cut short have left, before or after their publication.
    /// What cannot be reached, or may be a copy's, stays.
    static void clear_former(StateFolder& folder);

  private:
    [[nodiscard]] StateFolder::Impl& run() const noexcept { return *folder_.impl_; }
    [[nodiscard]] std::optional<std::size_t> present_drive_in(
        const std::filesystem::path& place) const;
    [[nodiscard]] HeldExtents hold(const std::filesystem::path& file) const;
    void undo();

    StateFolder& folder_;
    Manifest next_;
    Manifest former_;
    std::vector<HeldExtents> made_;             ///< folders that only the next layout has
    std::vector<std::filesystem::path> files_;  ///< that were made
    std::vector<HeldExtents> former_extents_;   ///< after publish(): that only the former one had
    enum class Stage { planned, made, published } stage_ = Stage::planned;
};

}  // namespace spillway::offload::detail
