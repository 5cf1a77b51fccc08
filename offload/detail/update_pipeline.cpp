// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update_pipeline.h"

#include <algorithm>
#include <utility>

namespace spillway::offload::detail {
namespace {

/// Chunks in host memory that are updated in one go. Threads meet at the end of each go, which
/// costs them some microseconds; a finished chunk is published at once all the same. With I/O under
/// way the goes are short, so that the drive is not left waiting.
constexpr std::size_t resident_chunks_at_once = 16;
constexpr std::size_t resident_chunks_beside_io = 2;

}  // namespace

UpdatePipeline::UpdatePipeline(const Context& context, std::vector<std::uint64_t> chunk_order,
                               MemoryLedger& ledger)
    : context_(context),
      chunk_order_(std::move(chunk_order)),
      slots_(context.plan.pipeline_slots),
      lanes_(context.store.drives(), context.plan.pipeline_slots),
      thread_(context.monitor) {
    const auto chunk_tiles = static_cast<std::size_t>(context_.plan.chunk_tiles);
    PerPlane<bool> any_staged{};
    bool any_spilled = false;
    for (std::uint64_t chunk = 0; chunk < context_.plan.chunks; ++chunk) {
        for (const auto plane : context_.plan.planes_of(chunk))
            any_staged[index_of(plane)] |= staged(plane, chunk);
        any_spilled |= gradient_spilled(chunk);
    }
    std::size_t slot_bytes = any_spilled ? chunk_tiles * gradient_tile_bytes : 0;
    for (const auto plane : context_.plan.planes)
        slot_bytes +=
            any_staged[index_of(plane)] ? chunk_tiles * tile_bytes(plane) + plane_gap_bytes : 0;
    arena_ = ledger.arena("update staging", slots_.size() * slot_bytes);
    ArenaCutter cutter(arena_.bytes());
    for (std::size_t index = slots_.size(); index-- > 0;) {
        auto& slot = slots_[index];
        for (const auto plane : context_.plan.planes) {
            slot.checksums[index_of(plane)].resize(chunk_tiles);
            if (any_staged[index_of(plane)]) {
                slot.buffers[index_of(plane)] = cutter.cut(chunk_tiles * tile_bytes(plane));
                cutter.end_plane();
            }
        }
        if (any_spilled)
            slot.gradient = cutter.cut(chunk_tiles * gradient_tile_bytes);
        free_slots_.push_back(index);
    }
    thread_.start([this] { run(); });
}

UpdatePipeline::~UpdatePipeline() {
    thread_.stop();
}

void UpdatePipeline::start() {
    const auto lock = context_.monitor.lock();
    started_ = true;
    context_.monitor.notify();
}

void UpdatePipeline::begin_update(std::unique_ptr<ChunkUpdate> update, std::uint64_t version) {
    const auto lock = context_.monitor.lock();
    commands_.emplace_back(Update{std::move(update), version});
    updating_ = true;
    context_.monitor.notify();
}

void UpdatePipeline::request_commit(CommitNote note, std::uint64_t version) {
    const auto lock = context_.monitor.lock();
    commands_.emplace_back(Commit{std::move(note), version});
    context_.monitor.notify();
}

void UpdatePipeline::edit(std::function<void()> edit) {
    {
        const auto lock = context_.monitor.lock();
        commands_.emplace_back(std::move(edit));
        context_.monitor.notify();
    }
    wait_idle();
}

void UpdatePipeline::wait_updated() {
    auto lock = context_.monitor.lock();
    context_.monitor.wait(lock, [&] { return !updating_; });
}

void UpdatePipeline::wait_idle() {
    auto lock = context_.monitor.lock();
    context_.monitor.wait(lock, [&] { return commands_.empty() && !busy_; });
}

bool UpdatePipeline::wait_idle(std::chrono::milliseconds limit) {
    auto lock = context_.monitor.lock();
    return context_.monitor.wait_for(lock, limit, [&] { return commands_.empty() && !busy_; });
}

std::optional<UpdatePipeline::Command> UpdatePipeline::next_command() {
    auto lock = context_.monitor.lock();
    busy_ = false;
    context_.monitor.notify();
    context_.monitor.wait(lock, [&] { return thread_.stopping() || !commands_.empty(); });
    if (thread_.stopping())
        return std::nullopt;
    auto command = std::move(commands_.front());
    commands_.pop_front();
    busy_ = true;
    return command;
}

void UpdatePipeline::run() {
    {
        auto lock = context_.monitor.lock();
        context_.monitor.wait(lock, [&] { return thread_.stopping() || started_; });
        if (thread_.stopping())
            return;
    }
    begin_reading();
    read_ahead();
    while (const auto command = next_command()) {
        if (const auto* const commit = std::get_if<Commit>(&*command)) {
            if (context_.committer->rewrites_planes())
                forget_read_ahead();
            context_.committer->commit(commit->note, commit->version);
            read_ahead();
            continue;
        }
        if (const auto* const edit = std::get_if<Edit>(&*command)) {
            forget_read_ahead();
            (*edit)();
            continue;
        }
        execute(std::get<Update>(*command));
        read_ahead();
    }
}

/// The chunks that pass through slots, each drive's in their order.
void UpdatePipeline::begin_reading() {
    passing_.clear();
    std::vector<std::size_t> drives;
    for (std::size_t position = 0; position < chunk_order_.size(); ++position) {
        if (is_resident(chunk_order_[position]))
            continue;
        passing_.push_back(position);
        drives.push_back(drive_of(chunk_order_[position]));
    }
    lanes_.begin(drives);
}

/// Where its first plane on a drive lies, or its gradient.
std::size_t UpdatePipeline::drive_of(std::uint64_t chunk) const noexcept {
    for (const auto plane : context_.plan.planes_of(chunk)) {
        if (staged(plane, chunk))
            return context_.store.drive_of(plane, tiles_of(chunk).begin);
    }
    return context_.spill->drive_of(chunk);
}

/// Starts reads into free slots.
void UpdatePipeline::read_ahead() {
    while (!free_slots_.empty()) {
        const auto item = lanes_.take();
        if (!item)
            return;
        const auto index = free_slots_.back();
        free_slots_.pop_back();
        auto& slot = slots_[index];
        slot.position = passing_[*item];
        slot.chunk = chunk_order_[slot.position];
        slot.drive = drive_of(slot.chunk);
        slot.gradient_asked = false;
        for (const auto plane : context_.plan.planes_of(slot.chunk)) {
            if (staged(plane, slot.chunk))
                slot.reads.append(context_.store.read(plane, tiles_of(slot.chunk),
                                                      slot.buffers[index_of(plane)],
                                                      nvme::ReadPriority::prefetch));
        }
        read_slots_.push_back(index);
    }
}

/// The next update reads anew.
void UpdatePipeline::forget_read_ahead() {
    for (const auto index : read_slots_) {
        slots_[index].reads.wait();
        free_slots_.push_back(index);
    }
    read_slots_.clear();
    begin_reading();
}

/// Spilled gradients can be read once all of them are known to be there.
void UpdatePipeline::ask_for_gradients() {
    for (const auto index : read_slots_) {
        auto& slot = slots_[index];
        if (slot.gradient_asked || !gradient_spilled(slot.chunk))
            continue;
        slot.gradient_read = context_.spill->read(slot.chunk, slot.gradient);
        slot.gradient_asked = true;
    }
}

void UpdatePipeline::execute(const Update& update) {
    const auto began = now_s();
    update.work->begin();
    const auto how = passing(update);
    for (std::size_t position = 0; position < chunk_order_.size();) {
        keep_reading();
        if (is_resident(chunk_order_[position])) {
            position = update_resident(position, update);
        } else {
            update_read(take_read(position, how), update);
            ++position;
        }
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

UpdatePipeline::Passing UpdatePipeline::passing(const Update& update) const {
    const bool all_there = std::ranges::none_of(chunk_order_, [&](std::uint64_t chunk) {
        return update.work->gradients(chunk) == ChunkGradients::awaited;
    });
    return all_there ? Passing::as_they_come : Passing::in_order;
}

void UpdatePipeline::keep_reading() {
    retire_finished_writes();
    read_ahead();
    ask_for_gradients();
}

/// Updates the chunk at `position` of the order and those after it that are in host memory with
/// their gradients; returns the position behind them.
std::size_t UpdatePipeline::update_resident(std::size_t position, const Update& update) {
    {
        const StallTimer timer(context_.update_time, StallCause::link);
        update.work->wait_for_gradients(chunk_order_[position]);
    }
    const auto most = slots_.empty() ? resident_chunks_at_once : resident_chunks_beside_io;
    const auto end = std::min(chunk_order_.size(), position + most);
    std::vector<ChunkPlanes> chunks;
    for (; position < end && is_resident(chunk_order_[position]); ++position) {
        const auto chunk = chunk_order_[position];
        const auto gradients = update.work->gradients(chunk);
        if (gradients == ChunkGradients::awaited)
            break;
        context_.board.move(chunk, ChunkState::updating);
        if (gradients == ChunkGradients::none)
            context_.board.publish(chunk, update.version);
        else
            chunks.push_back(planes_of(chunk));
    }
    run_update(chunks, update, [&](const ChunkPlanes& chunk) {
        context_.board.publish(chunk.chunk, update.version);
    });
    return position;
}

/// The slot of a chunk that is read and may be updated now. `position`: the first chunk not yet
/// updated, if they pass in order.
std::size_t UpdatePipeline::take_read(std::size_t position, Passing passing) {
    for (;;) {
        const auto seen = context_.io_ended.now();
        keep_reading();
        if (const auto found = find_read(position, passing)) {
            std::erase(read_slots_, *found);
            return *found;
        }
        const StallTimer timer(context_.update_time, read_slots_.empty() ? StallCause::nvme_write
                                                                         : StallCause::nvme_read);
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

/// Updates a chunk whose planes come, in part or whole, from the drive.
void UpdatePipeline::update_read(std::size_t index, const Update& update) {
    auto& slot = slots_[index];
    {
        const StallTimer timer(context_.update_time, StallCause::link);
        update.work->wait_for_gradients(slot.chunk);
    }
    {
        const StallTimer timer(context_.update_time, StallCause::nvme_read);
        slot.reads.wait();
        slot.gradient_read.wait();
    }
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

void UpdatePipeline::run_update(std::span<const ChunkPlanes> chunks, const Update& update,
                                const ChunkUpdate::Updated& updated) {
    const StallTimer timer(context_.update_time, StallCause::cpu);
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
            planes.data[i] = slot.buffers[i];
        planes.checksums[i] = slot.checksums[i];
    }
    planes.spilled_gradient = slot.gradient_asked ? slot.gradient : nullptr;
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
            slot.writes.append(
                context_.store.write(plane, tiles_of(slot.chunk), slot.buffers[index_of(plane)]));
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
        const StallTimer timer(context_.update_time, StallCause::nvme_write);
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
    lanes_.give_back(slots_[index].drive);
    free_slots_.push_back(index);
}

}  // namespace spillway::offload::detail
