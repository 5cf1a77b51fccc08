// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/sample_state.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "nvme/huge_page_arena.h"
#include "offload/commit_log.h"
#include "offload/detail/drives/drive_files.h"
#include "offload/detail/state/manifest_layout.h"
#include "offload/state_reader.h"
#include "tests/offload/sample_commits.h"

namespace spillway::testing {

using namespace spillway::offload;

namespace {

std::vector<TensorSpec> tensors() {
    return {{.name = "embedding", .shape = {70, 1000}, .group = 0, .contributions = 2},
            {.name = "empty", .shape = {0}, .group = 1, .contributions = 1},
            {.name = "head", .shape = {3 * tile_elements + 77}, .group = 1, .contributions = 1}};
}

/// Every tile in the first commit, every second one in the second.
void write_tiles(detail::TileStore& store, std::uint64_t sequence) {
    const nvme::HugePageArena memory(tile_bytes(Plane::m));
    for (const auto plane : store.planes()) {
        const auto bytes = memory.bytes().first(tile_bytes(plane));
        for (std::uint64_t tile = 0; tile < store.order().tiles(); tile += sequence) {
            for (std::size_t i = 0; i < bytes.size(); ++i)
                bytes[i] = static_cast<std::byte>(
                    (i * 31 + tile * 7 + index_of(plane) * 3 + sequence * 11) * 0x9E3779B1u >> 24);
            store.write(plane, {tile, tile + 1}, bytes.data()).wait();
            store.wrote(plane, {tile, tile + 1}, std::vector{detail::tile_checksum(bytes)});
        }
    }
    store.flush();
}

CommitTable described(const detail::TileStore& store, std::uint64_t sequence) {
    CommitTable table{.sequence = sequence,
                      .iteration = 10 * sequence,
                      .update = 9 * sequence,
                      .tensor_steps = {sequence, sequence + 1, sequence + 2},
                      .planes = {},
                      .client_state = "position " + std::to_string(sequence)};
    store.describe(table);
    return table;
}

CommitLog log_of(nvme::IoQueue& queue, const StateFolder& folder) {
    return {queue,
            folder.folder(),
            folder.manifest().run,
            detail::table_shape_of(folder.manifest()),
            CommitLog::start_for(folder.folder()),
            folder.manifest().generation};
}

}  // namespace

CommitTable make_sample_state(const std::filesystem::path& out, const Folders& drives,
                              const std::string& durability) {
    const auto first = drives.empty() ? std::filesystem::path() : drives.front();
    const auto more = drives.empty() ? Folders{} : Folders(drives.begin() + 1, drives.end());
    auto folder =
        StateFolder::create(out, first, tensors(), durability, "{}", training_planes, more);
    const auto& manifest = folder.manifest();
    const ElementOrder order(manifest.tensors);
    const detail::DriveQueues queues(
        drives.size(), {.every_drive = {.backend = nvme::BackendKind::threads, .depth = 4}});
    auto open = detail::open_drives(queues, folder.open_extents(nvme::OpenMode::create_or_open),
                                    detail::extent_map_of(manifest));
    detail::TileStore store(std::move(open.files), std::move(open.map), order,
                            detail::durability_of(manifest), manifest.planes);
    auto log = log_of(queues.front(), folder);
    CommitTable table;
    for (std::uint64_t sequence = 1; sequence <= 2; ++sequence) {
        write_tiles(store, sequence);
        table = described(store, sequence);
        log.commit(table);
        store.mark_committed();
        folder.note_commit(sequence);
    }
    return table;
}

Relocation move_state(const std::filesystem::path& out, const Folders& drives,
                      const RelocationOptions& options) {
    auto folder = StateFolder::open(out, LockMode::exclusive);
    auto moved = relocate(folder, drives, options);
    if (!moved || !folder.lies_on(drives))
        throw std::logic_error("the state did not move");
    return *moved;
}

std::string wrong_with_state(const std::filesystem::path& out, const CommitTable& expected) {
    StateReader reader(out, nvme::BackendKind::threads);
    for (const auto& damage : reader.verify().damage)
        return damage;
    const auto& found = reader.commit();
    for (const auto plane : expected.stored) {
        if (found.planes[index_of(plane)].checksums != expected.planes[index_of(plane)].checksums)
            return fmt::format("plane {} has other checksums", plane_name(plane));
    }
    if (found.iteration != expected.iteration || found.update != expected.update ||
        found.tensor_steps != expected.tensor_steps || found.client_state != expected.client_state)
        return fmt::format("it is of iteration {}", found.iteration);
    if (found.sequence < expected.sequence)
        return fmt::format("it is of commit {}", found.sequence);
    return {};
}

void commit_again(const std::filesystem::path& out) {
    auto folder = StateFolder::open(out, LockMode::exclusive);
    const auto queue = real_queue();
    auto log = log_of(*queue, folder);
    auto table = log.recover().value().table;
    ++table.sequence;
    log.commit(table);
    folder.note_commit(table.sequence);
}

Folders extents_below(const std::filesystem::path& root) {
    Folders files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
        if (entry.is_regular_file() && entry.path().filename().string().starts_with("extents."))
            files.push_back(entry.path());
    }
    std::ranges::sort(files);
    return files;
}

Folders named_extents(const std::filesystem::path& out) {
    const auto folder = StateFolder::open(out, LockMode::shared_read);
    Folders files;
    for (std::size_t drive = 0; drive < folder.extents_folders().size(); ++drive)
        files.push_back(folder.manifest().extents_file(drive));
    std::ranges::sort(files);
    return files;
}

std::vector<Leftover> leftovers_in(const std::filesystem::path& out, const Folders& drives) {
    auto all = find_leftovers(out);
    for (const auto& drive : drives) {
        for (auto& one : find_leftovers(drive)) {
            if (std::ranges::find(all, one.path, &Leftover::path) == all.end())
                all.push_back(std::move(one));
        }
    }
    return all;
}

}  // namespace spillway::testing
