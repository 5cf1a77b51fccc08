// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/relocation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "offload/commit_log.h"
#include "offload/detail/drives/drive_files.h"
#include "offload/detail/drives/tile_copy.h"
#include "offload/detail/state/folder_checks.h"
#include "offload/detail/state/layout_change.h"
#include "offload/detail/state/manifest_layout.h"
#include "offload/disk_room.h"

namespace spillway::offload {
namespace {

using Clock = std::chrono::steady_clock;
using Folders = std::vector<std::filesystem::path>;

/// Of the drives that the state leaves.
IoOptions former_io(const RelocationOptions& options) {
    auto io = options.io;
    io.drives.clear();
    return io;
}

/// The newest commit, if it can be gone on from; none if there is none.
std::optional<CommitTable> newest_commit(std::optional<CommitLog>& log, nvme::IoQueue& queue,
                                         const StateFolder& folder) {
    std::optional<CommitLog::Recovered> found;
    if (CommitLog::start_for(folder.folder()) != CommitLog::Start::create) {
        log.emplace(queue, folder.folder(), folder.manifest().run,
                    detail::table_shape_of(folder.manifest()), CommitLog::Start::open_existing,
                    folder.manifest().generation);
        found = log->recover();
    }
    folder.check_commit(found ? found->table.sequence : 0,
                        found ? std::string_view(found->warning) : "");
    if (!found)
        return std::nullopt;
    if (found->condition == CommitLog::Recovered::Condition::dirty)
        throw FolderRefused(
            fmt::format("{}: this run was made with --durable off and did not end cleanly, so that "
                        "its state is not whole and cannot be moved",
                        folder.folder().string()));
    return std::move(found->table);
}

std::uint64_t copied_bytes(const Manifest& manifest) {
    std::uint64_t tile = 0;
    for (const auto plane : manifest.planes)
        tile += tile_bytes(plane);
    return detail::table_shape_of(manifest).tiles * tile;
}

/// Says how far it is, and ends it where that is asked for.
class Watch {
  public:
    Watch(const RelocationOptions& options, std::uint64_t all_bytes)
        : options_(options), all_bytes_(all_bytes) {}
    void operator()(std::uint64_t bytes) {
        moved_bytes_ += bytes;
        if (options_.progress)
            options_.progress(moved_bytes_, all_bytes_);
        if (options_.stop && options_.stop())
            throw RelocationStopped(
                "the move to other drives was stopped; the state is where it was");
    }

  private:
    const RelocationOptions& options_;
    std::uint64_t all_bytes_;
    std::uint64_t moved_bytes_ = 0;
};

/// Fills the next layout with what `table` names, and makes `table` the commit that names it there.
void fill(const StateFolder& folder, detail::LayoutChange& change, CommitTable& table,
          const RelocationOptions& options) {
    const auto& present = folder.manifest();
    const auto& next = change.manifest();
    const ElementOrder order(present.tensors);
    const auto durability = detail::durability_of(present);
    const detail::DriveQueues from_queues(present.all_extents().size(), former_io(options));
    const detail::DriveQueues to_queues(next.all_extents().size(), options.io);
    detail::TileStore from(detail::open_to_read(folder, from_queues),
                           detail::extent_map_of(present), order, durability, present.planes);
    from.load(table);
    auto drives =
        detail::open_drives(to_queues, change.make_extents(), detail::extent_map_of(next));
    detail::TileStore to(std::move(drives.files), std::move(drives.map), order, durability,
                         next.planes);
    detail::copy_tiles({.from = from,
                        .to = to,
                        .table = table,
                        .region_tiles = std::max(present.region_tiles, next.region_tiles),
                        .advanced = Watch(options, copied_bytes(present))});
    to.flush();
    to.describe(table);
    ++table.sequence;
}

}  // namespace

std::optional<Relocation> relocate(StateFolder& folder, const Folders& nvme,
                                   const RelocationOptions& options) {
    const auto start = Clock::now();
    const auto drives = nvme.empty()
                            ? Folders{}
                            : detail::check_drives(nvme.front(), {nvme.begin() + 1, nvme.end()});
    const detail::DriveQueues queues(1, former_io(options));
    std::optional<CommitLog> log;
    auto table = newest_commit(log, queues.front(), folder);
    if (!table)
        return std::nullopt;
    finish_relocations(folder);
    const auto& present = folder.manifest();
    Relocation moved{.from = present.all_extents(), .to = {}, .bytes = copied_bytes(present)};
    detail::LayoutChange change(folder, drives);
    moved.to = change.manifest().all_extents();
    require_disk_room(moved.to, detail::extents_bytes_of(change.manifest()));
    fill(folder, change, *table, options);
    log->next_layout(detail::table_shape_of(change.manifest())).commit(*table);
    change.publish(table->sequence);
    moved.left = change.remove_former();
    moved.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return moved;
}

void finish_relocations(StateFolder& folder) {
    detail::LayoutChange::clear_former(folder);
}

}  // namespace spillway::offload
