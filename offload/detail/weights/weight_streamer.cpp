// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/weights/weight_streamer.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "cuda/optimizer_kernels.h"
#include "offload/detail/drives/tile_join.h"
#include "offload/detail/placement/unit_cache.h"
#include "offload/stream_span.h"

namespace spillway::offload::detail {
namespace {

std::size_t chunk_bytes(const OffloadPlan& plan) noexcept {
    return static_cast<std::size_t>(plan.chunk_tiles) * joined_tile_bytes;
}

}  // namespace

WeightStreamer::WeightStreamer(const Context& context, std::vector<TileRange> unit_tiles,
                               MemoryLedger& ledger)
    : context_(context),
      unit_tiles_(std::move(unit_tiles)),
      class_of_unit_(unit_tiles_.size()),
      staging_(ledger, context.device, "weight staging",
               context.plan.weight_read_buffers * chunk_bytes(context.plan)),
      copy_stream_(context.device.create_stream("weights up")),
      join_stream_(context.device.create_stream("join weights")),
      stall_(context.compute, context.stalls, context.trace.compute_stalls),
      thread_(context.monitor) {
    const auto& plan = context_.plan;
    for (std::size_t slot_class = 0; slot_class < plan.weight_slots.size(); ++slot_class) {
        const auto& planned = plan.weight_slots[slot_class];
        for (const auto unit : planned.units)
            class_of_unit_[unit] = slot_class;
        for (std::size_t i = 0; i < planned.slots; ++i) {
            slot_memory_.push_back(context_.device.allocate(planned.slot_bytes));
            Slot slot;
            slot.slot_class = slot_class;
            slot.data = slot_memory_.back().data();
            slots_.push_back(std::move(slot));
        }
    }
    for (std::size_t buffer = plan.weight_read_buffers; buffer-- > 0;)
        free_buffers_.push_back(buffer);
    thread_.start([this] { run(); });
}

WeightStreamer::~WeightStreamer() {
    thread_.stop();
    try {
        copy_stream_->synchronize();
        join_stream_->synchronize();
        context_.compute.synchronize();
    } catch (...) {
        // The error has reached the client through the monitor or the compute stream already.
        context_.monitor.poison(std::current_exception());
    }
}

void WeightStreamer::begin_pass(std::vector<std::size_t> uses, std::uint64_t version,
                                WeightKind kind) {
    const auto lock = context_.monitor.lock();
    if (acquired_ != uses_.size())
        throw std::logic_error(
            fmt::format("a new pass begins while {} of {} uses of the former one are left",
                        uses_.size() - acquired_, uses_.size()));
    uses_.clear();
    for (const auto unit : uses)
        uses_.push_back({unit, std::nullopt});
    version_ = version;
    kind_ = kind;
    assigned_ = 0;
    acquired_ = 0;
    context_.monitor.notify();
}

const float* WeightStreamer::acquire(std::size_t unit) {
    stall_.begin();
    auto lock = context_.monitor.lock();
    if (acquired_ >= uses_.size() || uses_[acquired_].unit != unit)
        throw std::logic_error(
            fmt::format("unit {} is acquired out of the announced order (use {} of {})", unit,
                        acquired_, uses_.size()));
    const auto& use = uses_[acquired_];
    context_.monitor.wait(lock, [&] { return use.slot.has_value() && slots_[*use.slot].filled; });
    ++acquired_;
    auto& slot = slots_[*use.slot];
    const auto filled = slot.filled_event;
    kept_by_ = slot.fill_cause;
    auto* const data = slot.data;
    lock.unlock();
    context_.compute.wait(filled);
    stall_.end(kept_by_);
    return reinterpret_cast<const float*>(data);
}

void WeightStreamer::release(std::size_t unit) {
    auto released = context_.compute.record();
    const auto lock = context_.monitor.lock();
    for (auto& slot : slots_) {
        if (slot.unit == unit && slot.open_uses != 0 && slot.filled) {
            --slot.open_uses;
            slot.released_event = std::move(released);
            context_.monitor.notify();
            return;
        }
    }
    throw std::logic_error(fmt::format("unit {} is released but not held", unit));
}

void WeightStreamer::run() {
    for (;;) {
        while (issue_next()) {
        }
        if (!parts_.empty()) {
            finish_front_part();
            continue;
        }
        if (filling_ && free_buffers_.empty() && !returning_.empty()) {
            returning_.front().copied.wait();
            reclaim_buffers();
            continue;
        }
        auto lock = context_.monitor.lock();
        if (!filling_) {
            context_.monitor.wait(lock, [&] { return thread_.stopping() || can_progress(lock); });
        } else {
            wait_for_version(lock);
        }
        if (thread_.stopping())
            return;
    }
}

/// Notes what the update, which has to come first, spends its time on.
void WeightStreamer::wait_for_version(Monitor::Lock& lock) {
    const auto before = context_.update_time.snapshot();
    context_.trace.weight_waits.begin_wait();
    context_.monitor.wait(lock, [&] { return thread_.stopping() || can_progress(lock); });
    auto waited_s = context_.update_time.snapshot();
    for (std::size_t cause = 0; cause < stall_causes; ++cause) {
        waited_s[cause] -= before[cause];
        filling_->waited_s[cause] += waited_s[cause];
    }
    const auto most = std::ranges::max_element(waited_s);
    context_.trace.weight_waits.end_wait(
        *most > 0 ? trace_cause(static_cast<StallCause>(most - waited_s.begin()))
                  : TraceCause::cpu);
}

bool WeightStreamer::needs_buffer(PlaneSet planes, std::uint64_t chunk) const noexcept {
    return std::ranges::any_of(
        planes, [&](Plane plane) { return context_.planes.plane(plane, chunk) == nullptr; });
}

bool WeightStreamer::can_progress(const Monitor::Lock& lock) {
    if (!filling_)
        return assigned_ < uses_.size() && choose_slot(uses_[assigned_].unit).has_value();
    const auto chunk = chunk_of(filling_->next_tile);
    return context_.board.readable(lock, chunk, version_);
}

/// A slot that holds the unit already, or an empty or outdated one, or the one used again last.
std::optional<std::size_t> WeightStreamer::choose_slot(std::size_t unit) const {
    std::optional<std::size_t> best;
    std::size_t best_distance = 0;
    std::vector<std::size_t> order;
    for (std::size_t i = assigned_; i < uses_.size(); ++i)
        order.push_back(uses_[i].unit);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const auto& slot = slots_[i];
        if (slot.unit == unit && has_wanted(slot))
            return i;
        if (slot.slot_class != class_of_unit_[unit] || slot.open_uses != 0)
            continue;
        const auto distance = !has_wanted(slot) ? order.size() + 1 : next_use(order, 0, *slot.unit);
        if (!best || distance > best_distance) {
            best = i;
            best_distance = distance;
        }
    }
    return best;
}

bool WeightStreamer::assign_next_use(const Monitor::Lock&) {
    if (assigned_ >= uses_.size())
        return false;
    const auto unit = uses_[assigned_].unit;
    const auto chosen = choose_slot(unit);
    if (!chosen)
        return false;
    auto& slot = slots_[*chosen];
    uses_[assigned_++].slot = *chosen;
    ++slot.open_uses;
    if (slot.unit == unit && has_wanted(slot)) {
        context_.monitor.notify();  // nothing will be filled: whoever acquires it may go on
        return true;
    }
    slot.unit = unit;
    slot.version = version_;
    slot.kind = kind_;
    slot.filled = false;
    slot.fill_cause = context_.device.memory_kind() == cuda::MemoryKind::host ? StallCause::cpu
                                                                              : StallCause::link;
    filling_ = Filling{*chosen, planes_of(kind_), unit_tiles_[unit].begin, {}};
    return true;
}

/// Takes the next part (or the next use) under way if nothing stands against it.
bool WeightStreamer::issue_next() {
    reclaim_buffers();
    Part part;
    {
        const auto lock = context_.monitor.lock();
        if (thread_.stopping())
            return false;
        if (!filling_)
            return assign_next_use(lock);
        const auto chunk = chunk_of(filling_->next_tile);
        if (!context_.board.readable(lock, chunk, version_) ||
            (needs_buffer(filling_->planes, chunk) && free_buffers_.empty()))
            return false;
        const auto& unit = unit_tiles_[*slots_[filling_->slot].unit];
        part.slot = filling_->slot;
        part.chunk = chunk;
        part.planes = filling_->planes;
        part.tiles = {filling_->next_tile,
                      std::min(unit.end, (chunk + 1) * context_.plan.chunk_tiles)};
        part.last = part.tiles.end == unit.end;
    }
    start_reads(part);
    filling_->next_tile = part.tiles.end;
    if (part.last) {
        const auto& waited = filling_->waited_s;
        const auto most = std::max_element(waited.begin(), waited.end());
        if (*most > 0) {
            const auto lock = context_.monitor.lock();
            slots_[part.slot].fill_cause = static_cast<StallCause>(most - waited.begin());
        }
        filling_.reset();
    }
    parts_.push_back(std::move(part));
    return true;
}

void WeightStreamer::start_reads(Part& part) {
    if (!needs_buffer(part.planes, part.chunk))
        return;
    part.buffer = free_buffers_.back();
    free_buffers_.pop_back();
    for (const auto plane : part.planes) {
        if (context_.planes.plane(plane, part.chunk) == nullptr) {
            auto io = context_.store.read(plane, part.tiles, staging(*part.buffer, plane));
            part.io.append(std::move(io));
        }
    }
}

void WeightStreamer::finish_front_part() {
    auto part = std::move(parts_.front());
    parts_.pop_front();
    const auto began = now_s();
    context_.trace.weight_waits.begin_wait();
    part.io.wait();
    context_.trace.weight_waits.end_wait(TraceCause::nvme_read);
    verify(part);
    if (part.buffer) {
        const auto lock = context_.monitor.lock();
        auto& slot = slots_[part.slot];
        if (now_s() - began > 1e-4)
            slot.fill_cause = StallCause::nvme_read;
    }
    transfer(part);
    if (part.last)
        complete_slot(part);
}

void WeightStreamer::verify(const Part& part) {
    for (const auto plane : part.planes) {
        if (context_.planes.plane(plane, part.chunk) != nullptr)
            continue;
        const auto* const data = source(plane, part);
        for (auto tile = part.tiles.begin; tile < part.tiles.end; ++tile)
            context_.store.verify(
                plane, tile,
                {data + (tile - part.tiles.begin) * tile_bytes(plane), tile_bytes(plane)});
    }
}

std::byte* WeightStreamer::staging(std::size_t buffer, Plane plane) const noexcept {
    const auto chunk_tiles = static_cast<std::size_t>(context_.plan.chunk_tiles);
    auto* const begin = staging_.bytes().data() + buffer * chunk_bytes(context_.plan);
    return plane == Plane::residue ? begin + chunk_tiles * half_tile_bytes : begin;
}

std::byte* WeightStreamer::source(Plane plane, const Part& part) const {
    auto* const resident = context_.planes.plane(plane, part.chunk);
    if (resident == nullptr)
        return staging(*part.buffer, plane);
    return resident +
           (part.tiles.begin - part.chunk * context_.plan.chunk_tiles) * tile_bytes(plane);
}

void WeightStreamer::transfer(const Part& part) {
    Slot slot;
    {
        const auto lock = context_.monitor.lock();
        slot = slots_[part.slot];
    }
    const auto count = static_cast<std::size_t>(part.tiles.size());
    auto* const to =
        slot.data + (part.tiles.begin - unit_tiles_[*slot.unit].begin) * joined_tile_bytes;
    const auto isa = context_.isa;
    const TraceNumbers numbers{
        .what = "chunk", .number = part.chunk, .bytes = count * joined_tile_bytes};
    if (context_.device.memory_kind() == cuda::MemoryKind::host) {
        slot.released_event.wait();
        const TraceSpan span(context_.trace.weights, "join", numbers);
        fill_here(part, to);
        if (part.buffer)
            free_buffers_.push_back(*part.buffer);
        return;
    }
    copy_stream_->wait(slot.released_event);
    {
        const StreamSpan span(*copy_stream_, context_.trace.weights_up, "fetch", numbers);
        for (const auto plane : part.planes)
            copy_stream_->copy_rows_to_device(plane == Plane::residue ? to + half_tile_bytes : to,
                                              joined_tile_bytes, source(plane, part),
                                              tile_bytes(plane), tile_bytes(plane), count);
    }
    const auto copied = copy_stream_->record();
    if (part.buffer)
        returning_.push_back({*part.buffer, copied});
    join_stream_->wait(copied);
    if (part.planes.contains(Plane::average))
        return;
    const StreamSpan span(*join_stream_, context_.trace.weights, "join", numbers);
    if (auto* const kernels = join_stream_->kernels())
        cuda::join_tiles(*kernels, reinterpret_cast<float*>(to), count);
    else
        join_stream_->launch("join weights", [isa, to, count] { join_in_place(isa, to, count); });
}

/// On a host device, whose memory the kernels of this machine reach.
void WeightStreamer::fill_here(const Part& part, std::byte* to) const {
    const auto count = static_cast<std::size_t>(part.tiles.size());
    if (part.planes.contains(Plane::average)) {
        std::memcpy(to, source(Plane::average, part), count * joined_tile_bytes);
        return;
    }
    for (std::size_t tile = 0; tile < count; ++tile)
        join_tile(context_.isa, source(Plane::weight, part) + tile * half_tile_bytes,
                  source(Plane::residue, part) + tile * half_tile_bytes,
                  to + tile * joined_tile_bytes);
}

void WeightStreamer::complete_slot(const Part& part) {
    auto filled = join_stream_->record();
    const auto lock = context_.monitor.lock();
    auto& slot = slots_[part.slot];
    slot.filled_event = std::move(filled);
    slot.filled = true;
    context_.monitor.notify();
}

void WeightStreamer::reclaim_buffers() {
    while (!returning_.empty() && returning_.front().copied.done()) {
        returning_.front().copied.wait();  // surfaces a failed copy
        free_buffers_.push_back(returning_.front().buffer);
        returning_.pop_front();
    }
}

}  // namespace spillway::offload::detail
