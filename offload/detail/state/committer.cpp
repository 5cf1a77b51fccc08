// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/committer.h"

#include <deque>
#include <utility>

#include "offload/detail/threads/stall_clock.h"

namespace spillway::offload::detail {
namespace {

constexpr std::size_t planes_in_flight = 8;

}  // namespace

Committer::Committer(const Context& context) : context_(context) {}

void Committer::load(const CommitTable& table) {
    last_sequence_ = table.sequence;
    resident_changed_ = false;
}

void Committer::before_update() {
    if (context_.durability == Durability::off && !dirty_) {
        commit_bytes_ += context_.log.mark_dirty();
        dirty_ = true;
    }
}

PendingIo Committer::write_plane(Plane plane, std::uint64_t chunk,
                                 std::vector<std::uint64_t>& checksums) {
    const auto tiles = context_.plan.chunk_range(chunk, context_.store.order().tiles());
    const auto* const data = context_.planes.plane(plane, chunk);
    checksums.resize(tiles.size());
    context_.threads.for_each(tiles.size(), [&](std::uint64_t index) {
        checksums[index] = tile_checksum({data + index * tile_bytes(plane), tile_bytes(plane)});
    });
    commit_bytes_ += tiles.size() * tile_bytes(plane);
    return context_.store.write(plane, tiles, data);
}

void Committer::write_resident_planes() {
    struct Write {
        Plane plane;
        TileRange tiles;
        std::vector<std::uint64_t> checksums;
        PendingIo io;
    };
    std::deque<Write> in_flight;
    const auto retire = [&] {
        auto& write = in_flight.front();
        write.io.wait();
        context_.store.wrote(write.plane, write.tiles, write.checksums);
        in_flight.pop_front();
    };
    for (std::uint64_t chunk = 0; chunk < context_.plan.chunks; ++chunk) {
        for (const auto plane : context_.plan.planes_of(chunk)) {
            const bool written_with_weights =
                plane == Plane::residue && context_.client_weights != nullptr;
            if (context_.planes.plane(plane, chunk) == nullptr || written_with_weights)
                continue;
            if (in_flight.size() == planes_in_flight)
                retire();
            Write write{
                plane, context_.plan.chunk_range(chunk, context_.store.order().tiles()), {}, {}};
            write.io = write_plane(plane, chunk, write.checksums);
            in_flight.push_back(std::move(write));
        }
    }
    while (!in_flight.empty())
        retire();
}

void Committer::commit(const CommitNote& note, std::uint64_t update) {
    const auto began = now_s();
    const TraceSpan span(context_.trace, "commit", {.what = "update", .number = update});
    if (resident_changed_)
        write_resident_planes();
    resident_changed_ = false;
    if (context_.client_weights != nullptr)
        commit_bytes_ += context_.client_weights->write(context_.store);
    const auto written = now_s();
    context_.store.flush();
    publish(note, update);
    ++commits_;
    const auto ended = now_s();
    write_ns_ += static_cast<std::uint64_t>((written - began) * 1e9);
    flush_ns_ += static_cast<std::uint64_t>((ended - written) * 1e9);
    wall_ns_ += static_cast<std::uint64_t>((ended - began) * 1e9);
}

/// Has the log name what is on the drives now.
void Committer::publish(const CommitNote& note, std::uint64_t update) {
    CommitTable table;
    table.sequence = last_sequence_ + 1;
    table.iteration = note.iteration;
    table.update = update;
    table.tensor_steps = context_.tensor_steps;
    if (context_.factors != nullptr)
        table.factors = *context_.factors;
    table.client_state = note.client_state;
    context_.store.describe(table);
    commit_bytes_ += context_.log.commit(table);
    context_.store.mark_committed();
    context_.folder.note_commit(table.sequence);
    last_sequence_ = table.sequence;
    dirty_ = false;
}

}  // namespace spillway::offload::detail
