// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/weights/gathered_weights.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "offload/stream_span.h"

namespace spillway::offload::detail {

GatheredWeights::GatheredWeights(const GroupContext& context)
    : context_(context), gather_(make_share_gather(context_)) {
    for (unsigned rank = 0; rank < context_.members.size(); ++rank)
        add_rank(rank);
}

void GatheredWeights::add_rank(unsigned rank) {
    auto& device = context_.members[rank].device;
    Rank added;
    const auto allocate = [&](std::size_t bytes) {
        added.memory.push_back(device.allocate(bytes));
        return added.memory.back().data();
    };
    for (const auto& slots : context_.plan.gathered)
        for (std::size_t i = 0; i < slots.slots; ++i)
            added.places.emplace_back().data = allocate(slots.slot_bytes);
    added.kept.resize(context_.units.size());
    for (std::size_t unit = 0; unit < added.kept.size(); ++unit)
        if (context_.plan.kept[unit] != 0)
            added.kept[unit].data = allocate(context_.units[unit].share_bytes());
    added.up = device.create_stream("weights up");
    added.gather = device.create_stream("gather weights");
    added.stall = context_.stall_of(rank);
    slot_uses_.resize(added.places.size());
    ranks_.push_back(std::move(added));
}

void GatheredWeights::begin_pass(std::span<const std::size_t> uses, WeightKind kind) {
    uses_.clear();
    std::vector<std::size_t> fetches;
    for (const auto& use : gather_schedule(uses, context_.plan.gathered, context_.plan.kept)) {
        uses_.push_back({use, slot_uses_[use.slot]++});
        if (use.fetches)
            fetches.push_back(use.unit);
    }
    {
        const auto lock = context_.monitor.lock();
        brought_ = 0;
        for (auto& rank : ranks_)
            rank.acquired = 0;
    }
    context_.engine.begin_pass(std::move(fetches), kind);
}

void GatheredWeights::bring_all() {
    for (const auto& use : uses_) {
        if (use.gathers)
            bring(use);
        const auto lock = context_.monitor.lock();
        ++brought_;
        context_.monitor.notify();
    }
    for (; !gathers_.empty(); gathers_.pop_front())
        context_.wait_for_all("a unit of weights", gathers_.front());
}

/// A device that waits in vain for another is heard of by its gathers: what comes behind them may
/// wait for that one too.
void GatheredWeights::look_at_gathers() {
    while (!gathers_.empty() && context_.all_done(gathers_.front()))
        gathers_.pop_front();
}

void GatheredWeights::bring(const Use& use) {
    const auto began_s = now_s();
    const auto* const host = use.fetches ? context_.engine.acquire_weights(use.unit) : nullptr;
    const auto there_s = now_s();
    std::vector<GatherPart> parts;
    std::vector<cuda::Event> came;
    for (unsigned rank = 0; rank < ranks_.size(); ++rank) {
        parts.push_back(fill(rank, use, host));
        came.push_back(parts.back().ready);
    }
    gather(use, parts);
    if (host == nullptr)
        return note_brought(use, StallCause::devices);
    const auto queued_s = now_s();
    context_.wait_for_all("a share of weights", came, [this] { look_at_gathers(); });
    context_.engine.release_weights(use.unit);
    const auto longest = std::max({there_s - began_s, queued_s - there_s, now_s() - queued_s});
    note_brought(use, longest == there_s - began_s    ? context_.engine.weights_kept_by()
                      : longest == queued_s - there_s ? StallCause::devices
                                                      : StallCause::link);
}

void GatheredWeights::note_brought(const Use& use, StallCause by) {
    const auto lock = context_.monitor.lock();
    for (auto& rank : ranks_)
        rank.places[use.slot].brought_by = by;
}

cuda::Event GatheredWeights::wait_released(const Place& place, std::uint64_t uses) {
    for (;; look_at_gathers()) {
        auto lock = context_.monitor.lock();
        if (context_.monitor.wait_for(lock, GroupContext::between_looks,
                                      [&] { return place.released == uses; }))
            return place.last_use;
    }
}

GatherPart GatheredWeights::fill(unsigned number, const Use& use, const float* host) {
    auto& rank = ranks_[number];
    const auto& unit = context_.units[use.unit];
    auto& place = rank.places[use.slot];
    const auto last_use = wait_released(place, use.earlier);
    auto& kept = rank.kept[use.unit];
    const bool keeps = kept.data != nullptr;
    auto* const share = keeps ? kept.data : place.data + number * unit.share_bytes();
    if (host != nullptr) {
        rank.up->wait(keeps ? kept.gathered : last_use);
        const auto range = unit.of(number);
        if (range.size() != 0) {
            const StreamSpan span(*rank.up, context_.record(number).trace.weights_up, "fetch",
                                  numbers_of(use.unit));
            rank.up->copy_to_device(
                share + unit.offset_of(number) * sizeof(float),
                reinterpret_cast<const std::byte*>(host + (range.begin - unit.elements().begin)),
                static_cast<std::size_t>(range.size()) * sizeof(float));
        }
        kept.came = rank.up->record();
        rank.gather->wait(kept.came);
    }
    rank.gather->wait(last_use);
    return {*rank.gather, share, place.data, kept.came};
}

/// All sides at once: look_at_gathers() looks at what is known of all.
void GatheredWeights::gather(const Use& use, std::span<const GatherPart> parts) {
    {
        std::vector<std::unique_ptr<StreamSpan>> spans;
        for (unsigned rank = 0; rank < ranks_.size(); ++rank)
            spans.push_back(std::make_unique<StreamSpan>(*ranks_[rank].gather,
                                                         context_.record(rank).trace.gathers,
                                                         "gather", numbers_of(use.unit)));
        gather_->gather(parts, context_.units[use.unit].share_bytes());
    }
    std::vector<cuda::Event> gathered;
    for (auto& rank : ranks_) {
        auto& kept = rank.kept[use.unit];
        kept.gathered = rank.gather->record();
        gathered.push_back(kept.gathered);
        const auto lock = context_.monitor.lock();
        rank.places[use.slot].filled = kept.gathered;
    }
    gathers_.push_back(std::move(gathered));
}

TraceNumbers GatheredWeights::numbers_of(std::size_t unit) const noexcept {
    return {.what = "unit", .number = unit, .bytes = context_.units[unit].share_bytes()};
}

void GatheredWeights::leave() noexcept {
    gather_->leave();
}

const float* GatheredWeights::acquire(unsigned number, std::size_t unit) {
    auto& rank = ranks_.at(number);
    rank.stall->begin();
    auto lock = context_.monitor.lock();
    const auto index = rank.acquired;
    if (index >= uses_.size() || uses_[index].unit != unit)
        throw std::logic_error(
            fmt::format("unit {} is acquired out of the announced order (use {} of {})", unit,
                        index, uses_.size()));
    context_.monitor.wait(lock, [&] { return brought_ > index; });
    ++rank.acquired;
    const auto& place = rank.places[uses_[index].slot];
    const auto filled = place.filled;
    const auto by = place.brought_by;
    const auto* const data = reinterpret_cast<const float*>(place.data);
    lock.unlock();
    rank.stall->end(by);
    rank.stall->begin();
    context_.members[number].compute.wait(filled);
    rank.stall->end(StallCause::devices);
    return data + context_.units[unit].first_element();
}

void GatheredWeights::release(unsigned number, std::size_t unit) {
    auto released = context_.members[number].compute.record();
    const auto lock = context_.monitor.lock();
    auto& rank = ranks_.at(number);
    for (auto index = rank.acquired; index-- > 0;) {
        if (uses_[index].unit != unit)
            continue;
        auto& place = rank.places[uses_[index].slot];
        ++place.released;
        place.last_use = std::move(released);
        context_.monitor.notify();
        return;
    }
    throw std::logic_error(fmt::format("unit {} is released but not held", unit));
}

void GatheredWeights::require_all_acquired(unsigned rank) const {
    const auto lock = context_.monitor.lock();
    if (const auto acquired = ranks_.at(rank).acquired; acquired != uses_.size())
        throw std::logic_error(fmt::format("it ended with {} of {} uses of weights left",
                                           uses_.size() - acquired, uses_.size()));
}

}  // namespace spillway::offload::detail
