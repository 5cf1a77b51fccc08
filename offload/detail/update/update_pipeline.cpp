// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/update_pipeline.h"

#include <algorithm>
#include <utility>

namespace spillway::offload::detail {
UpdatePipeline::UpdatePipeline(const Context& context,
                               const std::vector<std::uint64_t>& chunk_order)
    : context_(context),
      visits_(update_visits(context.order, context.plan, chunk_order)),
      slots_(context.plan.pipeline_slots),
      lanes_(context.store.drives(), context.plan.pipeline_slots - context.plan.kept_slots),
      thread_(context.monitor) {
    for (std::size_t index = slots_.size(); index-- > 0;) {
        auto& slot = slots_[index];
        slot.memory = context.staging.slots()[index];
        for (const auto plane : context_.plan.planes)
            slot.checksums[index_of(plane)].resize(
                static_cast<std::size_t>(context_.plan.chunk_tiles));
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
            const bool rewrites = context_.committer->rewrites_planes();
            if (rewrites)
                forget_read_ahead();
            context_.committer->commit(commit->note, commit->version);
            if (rewrites)
                begin_reading();
            read_ahead();
            continue;
        }
        if (const auto* const edit = std::get_if<Edit>(&*command)) {
            forget_read_ahead();
            (*edit)();
            begin_reading();
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
    for (std::size_t position = 0; position < visits_.size(); ++position) {
        const auto chunk = visits_[position].chunk;
        if (is_resident(chunk) || is_kept(visits_[position].kind))
            continue;
        passing_.push_back(position);
        drives.push_back(drive_of(chunk));
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
        const auto turn = lanes_.take();
        if (!turn)
            return;
        const auto index = free_slots_.back();
        free_slots_.pop_back();
        auto& slot = slots_[index];
        slot.position = passing_[turn->item];
        slot.chunk = visits_[slot.position].chunk;
        slot.drive = turn->drive;
        slot.gradient_asked = false;
        slot.kept = false;
        for (const auto plane : context_.plan.planes_of(slot.chunk)) {
            if (staged(plane, slot.chunk))
                slot.reads.append(context_.store.read(plane, tiles_of(slot.chunk),
                                                      slot.memory.planes[index_of(plane)],
                                                      nvme::ReadPriority::prefetch));
        }
        read_slots_.push_back(index);
    }
}

/// For what rewrites planes, and may put them on other drives: begin_reading() follows it.
void UpdatePipeline::forget_read_ahead() {
    for (const auto index : read_slots_) {
        slots_[index].reads.wait();
        free_slots_.push_back(index);
    }
    read_slots_.clear();
}

/// Spilled gradients can be read once all of them are known to be there.
void UpdatePipeline::ask_for_gradients() {
    for (const auto index : read_slots_) {
        auto& slot = slots_[index];
        if (slot.gradient_asked || !gradient_spilled(slot.chunk))
            continue;
        slot.gradient_read = context_.spill->read(slot.chunk, slot.memory.gradient);
        slot.gradient_asked = true;
    }
}

}  // namespace spillway::offload::detail
