// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nvme/direct_file.h"
#include "offload/average_rule.h"
#include "offload/commit_table.h"
#include "offload/element_order.h"
#include "offload/errors.h"
#include "offload/factor_layout.h"

namespace spillway::offload {

namespace detail {
class LayoutChange;
}

/// What `manifest.json` holds: all of a run that never changes, and where its extents are now.
struct Manifest {
    RunId run;
    std::vector<TensorSpec> tensors;
    PlaneSet planes = training_planes;  ///< that the extents hold
    /// Of the plane of the average; none: there is none, or the client's settings tell.
    std::optional<AverageBasis> average = std::nullopt;
    SecondMoments second_moments = SecondMoments::planes;
    std::filesystem::path extents_folder;  ///< absolute: NVME/spillway.extents/RUN-UUID, or
                                           ///< OUT/spillway.state/extents
    std::vector<std::filesystem::path>
        more_extents;                ///< the same on further drives, in the order of their numbers
    std::uint64_t region_tiles = 0;  ///< with several drives: what lies on one (format version 2)
    /// Of the layout: how often the state has moved to other drives. Records of commits name it.
    std::uint64_t generation = 0;
    std::uint64_t first_file = 0;  ///< drive N's file is extents.(first_file + N); 0 in layout 0
    /// Folders that the layout before this one had: a move that was cut short may have left it.
    std::vector<std::filesystem::path> former_extents = {};
    std::string durability;  ///< "on" or "off"
    std::string
        client_settings;  ///< JSON object text: the client's run settings (opaque to this layer)

    /// Of all drives, by number.
    [[nodiscard]] std::vector<std::filesystem::path> all_extents() const;
    /// That holds a drive's extents.
    [[nodiscard]] std::filesystem::path extents_file(std::size_t drive) const;
};

enum class LockMode { exclusive, shared_read };

/// OUT/spillway.state/ and the run's extents folder, both held by flock for the object's life (the
/// pid inside is for messages only). A second engine on either is FolderRefused naming the folder
/// and the pid. Move-only.
class StateFolder {
  public:
    static constexpr const char* folder_name = "spillway.state";
    static constexpr const char* extents_name = "spillway.extents";

    /// Creates both folders for a new run. `out` must be missing or empty; `nvme` (may be empty:
    /// then the extents live in the state folder) must be an existing, writable folder, not a
    /// device node, not a file. The manifest is written last (temporary file, fsync, rename, fsync
    /// of the folder), so a crash before leaves a folder that start_over() reclaims.
    static StateFolder create(const std::filesystem::path& out, const std::filesystem::path& nvme,
                              std::vector<TensorSpec> tensors, std::string durability,
                              std::string client_settings, PlaneSet planes = training_planes,
                              const std::vector<std::filesystem::path>& more_nvme = {},
                              std::optional<AverageBasis> average = std::nullopt,
                              SecondMoments second_moments = SecondMoments::planes);

    /// Whether the run's state lies on the drives of `nvme`, in whatever order (none: in the state
    /// folder). Throws FolderRefused for a folder that is none, or cannot be written to.
    [[nodiscard]] bool lies_on(const std::vector<std::filesystem::path>& nvme) const;

    /// Opens an existing run. Refuses by name: no state there, an unknown format version, a
    /// manifest that does not parse, extents missing or of another run, a folder in use.
    static StateFolder open(const std::filesystem::path& out, LockMode mode);

    /// Whether `out` holds the state of a run (a manifest, readable or not).
    [[nodiscard]] static bool holds_run(const std::filesystem::path& out);

    /// Removes what a run without a valid commit left under `out` and in its extents folder, so
    /// that it can start fresh. Refuses a locked folder. Touches nothing that is not Spillway's.
    static void start_over(const std::filesystem::path& out, const std::filesystem::path& nvme,
                           const std::vector<std::filesystem::path>& more_nvme = {});

    StateFolder(StateFolder&&) noexcept;
    StateFolder& operator=(StateFolder&&) noexcept;
    ~StateFolder();

    [[nodiscard]] const Manifest& manifest() const noexcept;
    [[nodiscard]] const std::filesystem::path& folder() const noexcept;  ///< OUT/spillway.state
    [[nodiscard]] const std::filesystem::path& extents_folder() const noexcept;
    [[nodiscard]] std::filesystem::path extents_file() const;  ///< of the first drive
    /// Extents folders of all drives, by number.
    [[nodiscard]] std::vector<std::filesystem::path> extents_folders() const;
    /// The extents of all drives, by number
    [[nodiscard]] std::vector<nvme::DirectFile> open_extents(nvme::OpenMode mode) const;

    /// Notes the newest commit in the extents folder's lock file, and checks it on open: extents
    /// that have seen a later commit than `sequence` mean that OUT is an old copy (FolderRefused),
    /// or, where the log found the newer one damaged (CommitLog::Recovered::warning), that it is
    /// lost (IntegrityError): what the commit before names may be overwritten since.
    void note_commit(std::uint64_t sequence);
    void check_commit(std::uint64_t sequence, std::string_view damage = {}) const;

    class Impl;  ///< detail/state_folder_impl.h

  private:
    friend class detail::LayoutChange;
    explicit StateFolder(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

/// Something a dead run left in a folder: its extents while its OUT is gone, belongs to another run
/// or never committed; temporary files.
struct Leftover {
    std::filesystem::path path;
    std::uint64_t bytes = 0;
    std::string reason;
};
/// What `clean` would remove under `folder` (an OUT or an --nvme folder). Nothing of a living
/// (locked) or resumable run.
[[nodiscard]] std::vector<Leftover> find_leftovers(const std::filesystem::path& folder);
void remove_leftovers(const std::vector<Leftover>& leftovers);

}  // namespace spillway::offload
