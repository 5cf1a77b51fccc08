// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/gradients/gradient_chain.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "offload/stream_span.h"

namespace spillway::offload::detail {

GradientChain::GradientChain(const GroupContext& context) : context_(context) {
    const auto& plan = context_.plan;
    for (unsigned number = 0; number < context_.members.size(); ++number) {
        const auto& member = context_.members[number];
        Rank rank;
        for (std::size_t i = 0; i < plan.gradient_slots; ++i) {
            rank.memory.push_back(member.device.allocate(plan.gradient_bytes));
            rank.slots.emplace_back().data = rank.memory.back().as<float>();
        }
        rank.memory.push_back(member.device.allocate(plan.landing_bytes));
        rank.landing = rank.memory.back().as<float>();
        rank.down = member.device.create_stream("gradients down");
        rank.stall = context_.stall_of(number);
        ranks_.push_back(std::move(rank));
    }
}

void GradientChain::begin_pass() {
    const auto lock = context_.monitor.lock();
    for (auto& rank : ranks_)
        rank.ended = false;
}

float* GradientChain::acquire(unsigned number, std::size_t unit) {
    auto& rank = ranks_.at(number);
    rank.stall->begin();
    auto lock = context_.monitor.lock();
    const auto free_slot = [&] {
        return std::ranges::find_if(rank.slots, [](const Slot& slot) { return !slot.unit; });
    };
    context_.monitor.wait(lock, [&] { return free_slot() != rank.slots.end(); });
    auto& slot = *free_slot();
    slot.unit = unit;
    slot.held = true;
    const auto read = std::exchange(slot.read, {});
    lock.unlock();
    for (const auto& event : read)
        context_.members[number].compute.wait(event);
    // The last one's go to the host, the others' to the next rank.
    rank.stall->end(number == last() ? StallCause::link : StallCause::devices);
    if (number > 0) {
        rank.stall->begin();
        take_over(number, former_sum(number, unit), slot.data);
        rank.stall->end(StallCause::devices);
    }
    return slot.data;
}

GradientChain::Sum GradientChain::former_sum(unsigned number, std::size_t unit) {
    auto& before = ranks_[number - 1];
    auto lock = context_.monitor.lock();
    context_.monitor.wait(lock, [&] { return !before.sums.empty() || before.ended; });
    if (before.sums.empty() || before.sums.front().unit != unit)
        throw std::logic_error(
            fmt::format("rank {} has left no gradient of unit {}", number - 1, unit));
    auto sum = std::move(before.sums.front());
    before.sums.pop_front();
    return sum;
}

/// Device to device, on the stream that goes on with it.
void GradientChain::take_over(unsigned number, const Sum& sum, float* to) {
    auto& compute = context_.members[number].compute;
    compute.wait(sum.ready);
    const auto* const from = ranks_[number - 1].slots[sum.slot].data;
    const auto bytes =
        static_cast<std::size_t>(context_.units[sum.unit].elements().size()) * sizeof(float);
    {
        const StreamSpan span(compute, context_.record(number).trace.taken_over, "take over",
                              {.what = "unit", .number = sum.unit, .bytes = bytes});
        compute.copy_from_peer(reinterpret_cast<std::byte*>(to),
                               context_.members[number - 1].device,
                               reinterpret_cast<const std::byte*>(from), bytes);
    }
    give_back(number - 1, sum.slot, {compute.record()});
}

void GradientChain::give_back(unsigned rank, std::size_t slot, std::vector<cuda::Event> read) {
    const auto lock = context_.monitor.lock();
    ranks_[rank].slots[slot].unit.reset();
    ranks_[rank].slots[slot].read = std::move(read);
    context_.monitor.notify();
}

void GradientChain::release(unsigned number, std::size_t unit) {
    auto ready = context_.members[number].compute.record();
    const auto lock = context_.monitor.lock();
    auto& rank = ranks_.at(number);
    for (std::size_t i = 0; i < rank.slots.size(); ++i) {
        auto& slot = rank.slots[i];
        if (!slot.held || slot.unit != unit)
            continue;
        slot.held = false;
        rank.sums.push_back({i, unit, std::move(ready)});
        context_.monitor.notify();
        return;
    }
    throw std::logic_error(fmt::format("the gradient of unit {} is released but not held", unit));
}

void GradientChain::ended(unsigned rank) {
    const auto lock = context_.monitor.lock();
    ranks_.at(rank).ended = true;
    context_.monitor.notify();
}

void GradientChain::hand_over_all() {
    for (;;) {
        Sum sum;
        {
            auto lock = context_.monitor.lock();
            auto& sums = ranks_.back().sums;
            const auto all_ended = [&] {
                return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.ended; });
            };
            context_.monitor.wait(lock, [&] { return !sums.empty() || all_ended(); });
            if (sums.empty()) {
                for (unsigned rank = 0; rank < last(); ++rank)
                    if (!ranks_[rank].sums.empty())
                        throw std::logic_error(
                            fmt::format("rank {} did not take over the gradient of unit {}",
                                        rank + 1, ranks_[rank].sums.front().unit));
                return;
            }
            sum = std::move(sums.front());
            sums.pop_front();
        }
        hand_over(sum);
    }
}

void GradientChain::hand_over(const Sum& sum) {
    auto* const host = context_.engine.acquire_gradient(sum.unit);
    std::vector<cuda::Event> landed;
    for (unsigned rank = 0; rank <= last(); ++rank)
        landed.push_back(bring_share(rank, sum, host));
    give_back(last(), sum.slot, landed);
    context_.wait_for_all("a share of a gradient", landed);
    context_.engine.release_gradient(sum.unit);
}

cuda::Event GradientChain::bring_share(unsigned number, const Sum& sum, float* host) {
    auto& rank = ranks_[number];
    const auto& unit = context_.units[sum.unit];
    const auto range = unit.of(number);
    const auto first = range.begin - unit.elements().begin;
    const auto bytes = static_cast<std::size_t>(range.size()) * sizeof(float);
    const auto& trace = context_.record(number).trace;
    const TraceNumbers numbers{.what = "unit", .number = sum.unit, .bytes = bytes};
    rank.down->wait(sum.ready);
    if (bytes != 0) {
        const float* from = ranks_.back().slots[sum.slot].data + first;
        if (number != last()) {
            const StreamSpan span(*rank.down, trace.taken_share, "take share", numbers);
            rank.down->copy_from_peer(reinterpret_cast<std::byte*>(rank.landing),
                                      context_.members[last()].device,
                                      reinterpret_cast<const std::byte*>(from), bytes);
            from = rank.landing;
        }
        const StreamSpan span(*rank.down, trace.gradients_down, "take", numbers);
        rank.down->copy_to_host(reinterpret_cast<std::byte*>(host + first),
                                reinterpret_cast<const std::byte*>(from), bytes);
    }
    return rank.down->record();
}

}  // namespace spillway::offload::detail
