// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>

#include "offload/detail/update/update_pipeline.h"

namespace spillway::offload::detail {
namespace {

/// Chunks in host memory that are updated in one go. Threads meet at the end of each go, which
/// costs them some microseconds; a finished chunk is published at once all the same. With I/O under
/// way the goes are short, so that the drive is not left waiting.
constexpr std::size_t resident_chunks_at_once = 16;
constexpr std::size_t resident_chunks_beside_io = 2;

}  // namespace

void UpdatePipeline::execute(const Update& update) {
    const auto began = now_s();
    update.work->begin();
    const auto how = passing(update);
    for (std::size_t position = 0; position < visits_.size();) {
        keep_reading();
        position = visit(position, how, update);
    }
    while (!writing_slots_.empty())
        retire_write(writing_slots_.front());
    begin_reading();
    update.work->end();
    wall_ns_ += static_cast<std::uint64_t>((now_s() - began) * 1e9);
    const auto lock = context_.monitor.lock();
    updating_ = false;
    context_.monitor.notify();
}

/// Returns the position behind what was done.
std::size_t UpdatePipeline::visit(std::size_t position, Passing passing, const Update& update) {
    const auto& visit = visits_[position];
    if (is_resident(visit.chunk))
        return visit_resident(position, update);
    const auto slot = is_kept(visit.kind) ? take_kept(visit.chunk) : take_read(position, passing);
    if (is_update(visit.kind))
        update_read(slot, update);
    else
        measure_read(slot, visit, update);
    return position + 1;
}

/// Several passes keep to their order: what is to be updated waits for what is to be measured.
UpdatePipeline::Passing UpdatePipeline::passing(const Update& update) const {
    const bool all_there = std::ranges::none_of(visits_, [&](const ChunkVisit& visit) {
        return update.work->gradients(visit.chunk) == ChunkGradients::awaited;
    });
    return all_there && context_.plan.passes == 1 ? Passing::as_they_come : Passing::in_order;
}

void UpdatePipeline::keep_reading() {
    retire_finished_writes();
    read_ahead();
    ask_for_gradients();
}

/// Visits the chunk at `position` and those after it that are in host memory with their gradients,
/// as long as the same is to be done; returns the position behind them.
std::size_t UpdatePipeline::visit_resident(std::size_t position, const Update& update) {
    {
        const StallTimer timer(context_.update_time, StallCause::link);
        update.work->wait_for_gradients(visits_[position].chunk);
    }
    const auto pass = visits_[position].pass;
    const bool updates = is_update(visits_[position].kind);
    const auto most = slots_.empty() ? resident_chunks_at_once : resident_chunks_beside_io;
    const auto end = std::min(visits_.size(), position + most);
    std::vector<ChunkPlanes> chunks;
    for (; position < end && visits_[position].pass == pass; ++position) {
        const auto chunk = visits_[position].chunk;
        const auto gradients = update.work->gradients(chunk);
        if (!is_resident(chunk) || gradients == ChunkGradients::awaited)
            break;
        if (updates)
            context_.board.move(chunk, ChunkState::updating);
        if (gradients == ChunkGradients::given)
            chunks.push_back(planes_of(chunk));
        else if (updates)
            context_.board.publish(chunk, update.version);
    }
    if (!updates)
        run_measure(chunks, pass, update);
    else
        run_update(chunks, update, [&](const ChunkPlanes& chunk) {
            context_.board.publish(chunk.chunk, update.version);
        });
    return position;
}

/// The slot of a chunk that is read and may be updated or measured now. `position`: the first visit
/// not yet made, if they pass in order.
std::size_t UpdatePipeline::take_read(std::size_t position, Passing passing) {
    for (;;) {
        const auto seen = context_.io_ended.now();
        keep_reading();
        if (const auto found = find_read(position, passing)) {
            std::erase(read_slots_, *found);
            return *found;
        }
        const auto cause = read_slots_.empty() ? StallCause::nvme_write : StallCause::nvme_read;
        const StallTimer timer(context_.update_time, cause, context_.trace.update_waits);
        context_.io_ended.wait_beyond(seen);
    }
}

/// In order: whatever has been read of it. Else the first in order of those that are read.
std::optional<std::size_t> UpdatePipeline::find_read(std::size_t position, Passing passing) const {
    std::optional<std::size_t> found;
    for (const auto index : read_slots_) {
        const auto& slot = slots_[index];
        if (passing == Passing::in_order && slot.position == position)
            return index;
        const bool is_read = slot.reads.done() && slot.gradient_read.done();
        if (passing == Passing::as_they_come && is_read &&
            (!found || slot.position < slots_[*found].position))
            found = index;
    }
    return found;
}

/// The slot in which it was measured.
std::size_t UpdatePipeline::take_kept(std::uint64_t chunk) {
    const auto found = std::ranges::find_if(
        kept_slots_, [&](std::size_t index) { return slots_[index].chunk == chunk; });
    const auto index = *found;
    kept_slots_.erase(found);
    return index;
}

/// Until its planes and gradients are there.
void UpdatePipeline::wait_read(Slot& slot, const Update& update) {
    {
        const StallTimer timer(context_.update_time, StallCause::link);
        update.work->wait_for_gradients(slot.chunk);
    }
    const StallTimer timer(context_.update_time, StallCause::nvme_read,
                           context_.trace.update_waits);
    slot.reads.wait();
    slot.gradient_read.wait();
}

/// A pass before the last over a chunk whose planes come, in part or whole, from the drive.
void UpdatePipeline::measure_read(std::size_t index, const ChunkVisit& visit,
                                  const Update& update) {
    auto& slot = slots_[index];
    wait_read(slot, update);
    if (update.work->gradients(slot.chunk) == ChunkGradients::given) {
        const auto planes = planes_in(slot);
        run_measure({&planes, 1}, visit.pass, update);
    }
    if (visit.kind == VisitKind::measure) {
        free_slot(index);
        return;
    }
    kept_slots_.push_back(index);
    if (visit.kind == VisitKind::measure_and_keep)
        lanes_.give_back(slot.drive);
    slot.kept = true;
}

/// Updates a chunk whose planes come, in part or whole, from the drive.
void UpdatePipeline::update_read(std::size_t index, const Update& update) {
    auto& slot = slots_[index];
    wait_read(slot, update);
    context_.board.move(slot.chunk, ChunkState::updating);
    if (update.work->gradients(slot.chunk) == ChunkGradients::none) {
        context_.board.publish(slot.chunk, update.version);
        free_slot(index);
        return;
    }
    const auto planes = planes_in(slot);
    run_update({&planes, 1}, update, [](const ChunkPlanes&) {});
    slot.version = update.version;
    write_back(index);
}

void UpdatePipeline::run_measure(std::span<const ChunkPlanes> chunks, std::size_t pass,
                                 const Update& update) {
    const StallTimer timer(context_.update_time, StallCause::cpu);
    const TraceSpan span(context_.trace.update, "measure", numbers_of(chunks));
    update.work->measure(chunks, pass);
}

void UpdatePipeline::run_update(std::span<const ChunkPlanes> chunks, const Update& update,
                                const ChunkUpdate::Updated& updated) {
    const StallTimer timer(context_.update_time, StallCause::cpu);
    const TraceSpan span(context_.trace.update, "update", numbers_of(chunks));
    update.work->update(chunks, updated);
}

/// Those in host memory.
ChunkPlanes UpdatePipeline::planes_of(std::uint64_t chunk) const {
    ChunkPlanes planes;
    planes.chunk = chunk;
    planes.planes = context_.plan.planes_of(chunk);
    planes.tiles = tiles_of(chunk);
    for (const auto plane : planes.planes)
        planes.data[index_of(plane)] = context_.planes.plane(plane, chunk);
    return planes;
}

ChunkPlanes UpdatePipeline::planes_in(Slot& slot) const {
    auto planes = planes_of(slot.chunk);
    for (const auto plane : planes.planes) {
        const auto i = index_of(plane);
        planes.on_drive[i] = staged(plane, slot.chunk);
        if (planes.on_drive[i])
            planes.data[i] = slot.memory.planes[i];
        planes.checksums[i] = slot.checksums[i];
    }
    planes.verified = slot.kept;
    planes.spilled_gradient = slot.gradient_asked ? slot.memory.gradient : nullptr;
    return planes;
}

bool UpdatePipeline::is_resident(std::uint64_t chunk) const noexcept {
    return !gradient_spilled(chunk) &&
           std::ranges::none_of(context_.plan.planes_of(chunk),
                                [&](Plane plane) { return staged(plane, chunk); });
}

void UpdatePipeline::write_back(std::size_t index) {
    auto& slot = slots_[index];
    for (const auto plane : context_.plan.planes_of(slot.chunk)) {
        if (staged(plane, slot.chunk))
            slot.writes.append(context_.store.write(plane, tiles_of(slot.chunk),
                                                    slot.memory.planes[index_of(plane)]));
    }
    // Weights in memory are ready for the next pass now; on the drive once they are written.
    if (!weights_staged(slot.chunk))
        context_.board.publish(slot.chunk, slot.version);
    else
        context_.board.move(slot.chunk, ChunkState::writing_back);
    writing_slots_.push_back(index);
}

void UpdatePipeline::retire_write(std::size_t index) {
    std::erase(writing_slots_, index);
    auto& slot = slots_[index];
    {
        const StallTimer timer(context_.update_time, StallCause::nvme_write,
                               context_.trace.update_waits);
        slot.writes.wait();
    }
    for (const auto plane : context_.plan.planes_of(slot.chunk)) {
        if (staged(plane, slot.chunk))
            context_.store.wrote(plane, tiles_of(slot.chunk), slot.checksums[index_of(plane)]);
    }
    if (weights_staged(slot.chunk))
        context_.board.publish(slot.chunk, slot.version);
    free_slot(index);
}

void UpdatePipeline::retire_finished_writes() {
    const auto writing = writing_slots_;
    for (const auto index : writing) {
        if (slots_[index].writes.done())
            retire_write(index);
    }
}

void UpdatePipeline::free_slot(std::size_t index) {
    if (!slots_[index].kept)  // the lanes do not count it any more
        lanes_.give_back(slots_[index].drive);
    free_slots_.push_back(index);
}

}  // namespace spillway::offload::detail
