// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/gradients/gradient_collector.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "offload/stream_span.h"

namespace spillway::offload::detail {
namespace {

std::size_t chunk_bytes(const OffloadPlan& plan) noexcept {
    return static_cast<std::size_t>(plan.chunk_tiles) * gradient_tile_bytes;
}

}  // namespace

GradientCollector::GradientCollector(const Context& context, MemoryLedger& ledger)
    : context_(context),
      assembly_(ledger, context.device, "gradient assembly",
                context.plan.gradient_slots * chunk_bytes(context.plan)),
      contribution_(
          ledger, context.device, "gradient contribution",
          context.device.memory_kind() == cuda::MemoryKind::device ? chunk_bytes(context.plan) : 0),
      copy_stream_(context.device.create_stream("gradients down")),
      stall_(context.compute, context.stalls, context.trace.compute_stalls),
      progress_(context.plan.chunks),
      contributions_seen_(context.order.tensors().size(), 0),
      scans_(context.order, context.norms),
      thread_(context.monitor) {
    const auto& plan = context_.plan;
    ArenaCutter cutter(assembly_.bytes());
    for (std::size_t i = 0; i < plan.gradient_slots; ++i) {
        host_slots_.push_back({reinterpret_cast<float*>(cutter.cut(chunk_bytes(plan))), {}});
        free_host_slots_.push_back(i);
    }
    for (std::size_t i = 0; i < plan.unit_gradient_slots; ++i) {
        unit_memory_.push_back(context_.device.allocate(plan.unit_gradient_bytes));
        unit_slots_.push_back({unit_memory_.back().as<float>(), std::nullopt, true});
    }
    begin_step();
    thread_.start([this] { run(); });
}

GradientCollector::~GradientCollector() {
    thread_.stop();
    try {
        copy_stream_->synchronize();
        context_.compute.synchronize();
    } catch (...) {
        context_.monitor.poison(std::current_exception());
    }
}

ElementRange GradientCollector::chunk_elements(std::uint64_t chunk) const noexcept {
    const auto tiles = context_.plan.chunk_range(chunk, context_.order.tiles());
    return {tiles.begin * tile_elements, tiles.end * tile_elements};
}

void GradientCollector::begin_step() {
    const auto lock = context_.monitor.lock();
    complete_chunks_ = 0;
    std::fill(contributions_seen_.begin(), contributions_seen_.end(), 0u);
    scans_.begin_step();
    for (std::uint64_t chunk = 0; chunk < context_.plan.chunks; ++chunk) {
        auto& progress = progress_[chunk];
        progress.complete = false;
        progress.missing_elements = 0;
        const auto elements = chunk_elements(chunk);
        const auto span = context_.order.tensors_in(elements);
        for (auto tensor = span.first; tensor < span.last; ++tensor) {
            const auto range = context_.order.range(tensor);
            const auto inside =
                std::min(range.end, elements.end) - std::max(range.begin, elements.begin);
            progress.missing_elements += inside * context_.order.tensors()[tensor].contributions;
        }
    }
}

float* GradientCollector::acquire(std::size_t unit) {
    stall_.begin();
    auto lock = context_.monitor.lock();
    const auto free_slot = [&] {
        return std::find_if(unit_slots_.begin(), unit_slots_.end(),
                            [](const UnitSlot& slot) { return slot.free; });
    };
    context_.monitor.wait(lock, [&] { return free_slot() != unit_slots_.end(); });
    auto& slot = *free_slot();
    slot.free = false;
    slot.unit = unit;
    lock.unlock();
    stall_.end(context_.spill != nullptr && context_.plan.gradient_slots != 0
                   ? StallCause::nvme_write
                   : StallCause::link);
    return slot.data;
}

void GradientCollector::release(std::size_t unit) {
    auto ready = context_.compute.record();
    const auto lock = context_.monitor.lock();
    for (std::size_t i = 0; i < unit_slots_.size(); ++i) {
        if (!unit_slots_[i].free && unit_slots_[i].unit == unit) {
            unit_slots_[i].unit.reset();
            jobs_.push_back({i, unit, std::move(ready)});
            context_.monitor.notify();
            return;
        }
    }
    throw std::logic_error(fmt::format("the gradient of unit {} is released but not held", unit));
}

void GradientCollector::run() {
    for (;;) {
        Job job;
        {
            auto lock = context_.monitor.lock();
            busy_ = false;
            context_.monitor.notify();
            context_.monitor.wait(lock, [&] { return thread_.stopping() || !jobs_.empty(); });
            if (thread_.stopping())
                return;
            job = std::move(jobs_.front());
            jobs_.pop_front();
            busy_ = true;
        }
        take(job);
        const auto lock = context_.monitor.lock();
        unit_slots_[job.slot].free = true;
        context_.monitor.notify();
    }
}

/// Chunks from the last to the first: backward completes them in that order.
void GradientCollector::take(const Job& job) {
    if (context_.device.memory_kind() == cuda::MemoryKind::host)
        job.ready.wait();
    else
        copy_stream_->wait(job.ready);
    const auto range = unit_range(context_.order, context_.units[job.unit]);
    const auto& unit = context_.units[job.unit];
    const auto chunk_length = context_.plan.chunk_tiles * tile_elements;
    for (auto tensor = unit.first_tensor; tensor < unit.first_tensor + unit.tensor_count; ++tensor)
        ++contributions_seen_[tensor];
    if (range.size() == 0)
        return;
    for (auto chunk = (range.end - 1) / chunk_length + 1; chunk-- > range.begin / chunk_length;) {
        const auto elements = chunk_elements(chunk);
        take_chunk(job, chunk,
                   {std::max(range.begin, elements.begin), std::min(range.end, elements.end)});
    }
}

void GradientCollector::take_chunk(const Job& job, std::uint64_t chunk, ElementRange range) {
    auto* const gradient = place(chunk);
    const auto chunk_begin = chunk_elements(chunk).begin;
    const auto span = context_.order.tensors_in(range);
    std::uint64_t taken = 0;
    const bool from_device = context_.device.memory_kind() == cuda::MemoryKind::device;
    {
        const auto row = from_device ? context_.trace.gradients_down : context_.trace.gradients;
        const StreamSpan event(*copy_stream_, row, "take",
                               {.what = "chunk",
                                .number = chunk,
                                .bytes = static_cast<std::size_t>(range.size()) * sizeof(float)});
        for (auto tensor = span.first; tensor < span.last; ++tensor) {
            const auto whole = context_.order.range(tensor);
            const ElementRange inside{std::max(whole.begin, range.begin),
                                      std::min(whole.end, range.end)};
            take_tensor(job, tensor, inside, gradient + (inside.begin - chunk_begin));
            taken += inside.size();
        }
    }
    if (from_device)
        copy_stream_->synchronize();
    bool is_complete = false;
    {
        const auto lock = context_.monitor.lock();
        progress_[chunk].missing_elements -= taken;
        is_complete = progress_[chunk].missing_elements == 0;
    }
    if (is_complete)
        complete(chunk, gradient);
}

void GradientCollector::take_tensor(const Job& job, TensorId tensor, ElementRange range,
                                    float* into) {
    const auto unit_begin = unit_range(context_.order, context_.units[job.unit]).begin;
    const auto* const from = unit_memory_[job.slot].as<float>() + (range.begin - unit_begin);
    const auto count = static_cast<std::size_t>(range.size());
    const bool first = contributions_seen_[tensor] == 1;
    if (context_.device.memory_kind() == cuda::MemoryKind::host) {
        if (first)
            std::memcpy(into, from, count * sizeof(float));
        else
            cpu_optim::add_gradient(context_.isa, {into, count}, {from, count});
        return;
    }
    auto* const landing = first ? into : reinterpret_cast<float*>(contribution_.bytes().data());
    copy_stream_->copy_to_host(reinterpret_cast<std::byte*>(landing),
                               reinterpret_cast<const std::byte*>(from), count * sizeof(float));
    if (first)
        return;
    copy_stream_->synchronize();
    cpu_optim::add_gradient(context_.isa, {into, count}, {landing, count});
}

/// Where the gradient of `chunk` is put together: its resident place, or an assembly slot.
float* GradientCollector::place(std::uint64_t chunk) {
    if (auto* const resident = context_.planes.gradient(chunk))
        return resident;
    {
        const auto lock = context_.monitor.lock();
        if (progress_[chunk].host_slot)
            return host_slots_[*progress_[chunk].host_slot].data;
    }
    const auto slot = free_host_slot();
    zero_padding(chunk, host_slots_[slot].data);
    const auto lock = context_.monitor.lock();
    progress_[chunk].host_slot = slot;
    return host_slots_[slot].data;
}

std::size_t GradientCollector::free_host_slot() {
    {
        const auto lock = context_.monitor.lock();
        if (!free_host_slots_.empty()) {
            const auto slot = free_host_slots_.back();
            free_host_slots_.pop_back();
            return slot;
        }
    }
    if (context_.spill != nullptr && !spilling_slots_.empty()) {
        const auto slot = spilling_slots_.front();
        spilling_slots_.pop_front();
        host_slots_[slot].spilling.wait();
        return slot;
    }
    auto lock = context_.monitor.lock();
    context_.monitor.wait(lock, [&] { return thread_.stopping() || !free_host_slots_.empty(); });
    if (free_host_slots_.empty())
        throw std::runtime_error("the engine was closed in the middle of a step");
    const auto slot = free_host_slots_.back();
    free_host_slots_.pop_back();
    return slot;
}

void GradientCollector::zero_padding(std::uint64_t chunk, float* gradient) const {
    const auto elements = chunk_elements(chunk);
    const auto span = context_.order.tensors_in(elements);
    auto covered = elements.begin;
    for (auto tensor = span.first; tensor < span.last; ++tensor) {
        const auto range = context_.order.range(tensor);
        if (range.begin > covered)
            std::fill(gradient + (covered - elements.begin),
                      gradient + (range.begin - elements.begin), 0.0f);
        covered = std::max(covered, std::min(range.end, elements.end));
    }
    std::fill(gradient + (covered - elements.begin), gradient + elements.size(), 0.0f);
}

void GradientCollector::complete(std::uint64_t chunk, float* gradient) {
    {
        const TraceSpan event(context_.trace.gradients, "scan", {.what = "chunk", .number = chunk});
        scans_.scan(context_.isa, context_.plan.chunk_range(chunk, context_.order.tiles()),
                    gradient);
    }
    if (context_.spill == nullptr && !scans_.nonfinite_tensor().empty())
        throw NonfiniteGradient(
            fmt::format("the gradient of tensor '{}' is not finite; the run stops here and can be "
                        "resumed from its last commit "
                        "(with a smaller learning rate, or with --nonfinite skip)",
                        scans_.nonfinite_tensor()));
    std::optional<std::size_t> spilled;
    if (context_.spill != nullptr && context_.planes.gradient(chunk) == nullptr) {
        const auto slot = *progress_[chunk].host_slot;
        host_slots_[slot].spilling =
            context_.spill->write(chunk, reinterpret_cast<const std::byte*>(gradient));
        spilled = slot;
    }
    const auto lock = context_.monitor.lock();
    if (spilled) {
        progress_[chunk].host_slot.reset();
        spilling_slots_.push_back(*spilled);
    }
    progress_[chunk].complete = true;
    ++complete_chunks_;
    context_.monitor.notify();
}

GradientSummary GradientCollector::finish() {
    {
        auto lock = context_.monitor.lock();
        const auto all_complete = [&] { return complete_chunks_ == context_.plan.chunks; };
        context_.monitor.wait(lock, [&] { return all_complete() || (jobs_.empty() && !busy_); });
        if (!all_complete())
            throw std::logic_error("the step ends without all gradients; missing: " +
                                   incomplete_tensors());
    }
    while (!spilling_slots_.empty()) {
        const auto slot = spilling_slots_.front();
        spilling_slots_.pop_front();
        host_slots_[slot].spilling.wait();
        const auto lock = context_.monitor.lock();
        free_host_slots_.push_back(slot);
    }
    return scans_.summary();
}

std::string GradientCollector::incomplete_tensors() const {
    std::string names;
    for (TensorId tensor = 0; tensor < context_.order.tensors().size(); ++tensor) {
        const auto& spec = context_.order.tensors()[tensor];
        if (contributions_seen_[tensor] < spec.contributions)
            names += (names.empty() ? "" : ", ") + spec.name;
    }
    return names;
}

void GradientCollector::wait_complete(std::uint64_t chunk) {
    auto lock = context_.monitor.lock();
    context_.monitor.wait(lock, [&] { return progress_[chunk].complete; });
}

bool GradientCollector::is_complete(std::uint64_t chunk) const {
    const auto lock = context_.monitor.lock();
    return progress_[chunk].complete;
}

float* GradientCollector::in_memory(std::uint64_t chunk) const {
    if (auto* const resident = context_.planes.gradient(chunk))
        return resident;
    const auto lock = context_.monitor.lock();
    return progress_[chunk].host_slot ? host_slots_[*progress_[chunk].host_slot].data : nullptr;
}

void GradientCollector::consumed(std::uint64_t chunk) {
    const auto lock = context_.monitor.lock();
    if (!progress_[chunk].host_slot)
        return;
    free_host_slots_.push_back(*progress_[chunk].host_slot);
    progress_[chunk].host_slot.reset();
    context_.monitor.notify();
}

}  // namespace spillway::offload::detail
