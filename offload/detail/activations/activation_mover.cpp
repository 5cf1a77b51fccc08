// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/activations/activation_mover.h"

#include <algorithm>
#include <utility>

#include "offload/detail/activations/activation_needs.h"
#include "offload/stream_span.h"

namespace spillway::offload::detail {

ActivationMover::ActivationMover(const Context& context, ActivationSpill spill,
                                 MemoryLedger& ledger)
    : context_(context),
      resident_(ledger, context.device, "layer inputs",
                activation_needs(context.layout).resident_bytes),
      staging_(ledger, context.device, "staging of layer inputs",
               activation_needs(context.layout).staging_bytes),
      copy_stream_(context.device.create_stream("layer inputs")),
      stall_(context.compute, context.stalls, context.trace.compute_stalls),
      inputs_(context.layout.tiers.size() * context.layout.micro_batches),
      spill_(std::move(spill)),
      thread_(context.monitor) {
    ledger.count("tables of layer inputs", activation_needs(context.layout).table_bytes);
    std::size_t in_host = 0;
    for (const auto tier : context_.layout.tiers) {
        host_layers_before_.push_back(in_host);
        in_host += tier == ActivationTier::host ? 1 : 0;
    }
    if (context_.layout.layers_in(ActivationTier::nvme) != 0) {
        const auto piece = std::min(activation_slot_bytes(context_.layout), activation_piece_bytes);
        for (std::size_t i = activation_pieces; i-- > 0;)
            free_staging_.push_back(staging_.bytes().data() + i * piece);
    }
    thread_.start([this] { run(); });
}

ActivationMover::~ActivationMover() {
    close();
}

void ActivationMover::close() noexcept {
    thread_.stop();
    try {
        copy_stream_->synchronize();
        context_.compute.synchronize();  // what it does at the ends of stalls needs this object
    } catch (...) {
        context_.monitor.poison(std::current_exception());
    }
}

void ActivationMover::push(Job job) {
    job.ready = context_.compute.record();
    const auto lock = context_.monitor.lock();
    input(job.layer, job.micro_batch).done.reset();
    jobs_.push_back(std::move(job));
    context_.monitor.notify();
}

void ActivationMover::save(std::size_t layer, std::size_t micro_batch, const std::byte* at) {
    // One type of job for both directions: nobody writes to the place of one that is saved.
    push({Kind::save, layer, micro_batch, const_cast<std::byte*>(at), {}});
}

void ActivationMover::fetch(std::size_t layer, std::size_t micro_batch, std::byte* to) {
    push({Kind::fetch, layer, micro_batch, to, {}});
}

void ActivationMover::wait_saved(std::size_t layer, std::size_t micro_batch) {
    wait_done(layer, micro_batch, Kind::save,
              on_drive(layer) ? StallCause::nvme_write : StallCause::link);
}

void ActivationMover::wait_fetched(std::size_t layer, std::size_t micro_batch) {
    wait_done(layer, micro_batch, Kind::fetch,
              on_drive(layer) ? StallCause::nvme_read : StallCause::link);
}

void ActivationMover::wait_done(std::size_t layer, std::size_t micro_batch, Kind kind,
                                StallCause cause) {
    stall_.begin();
    auto lock = context_.monitor.lock();
    auto& awaited = input(layer, micro_batch);
    context_.monitor.wait(lock, [&] { return awaited.done == kind; });
    const auto event = awaited.event;
    lock.unlock();
    context_.compute.wait(event);
    stall_.end(cause);
}

void ActivationMover::note_done(const Job& job, cuda::Event event) {
    const auto lock = context_.monitor.lock();
    auto& done = input(job.layer, job.micro_batch);
    done.done = job.kind;
    done.event = std::move(event);
    context_.monitor.notify();
}

std::optional<ActivationMover::Job> ActivationMover::take_fetch_from_drive() {
    const auto lock = context_.monitor.lock();
    if (jobs_.empty() || jobs_.front().kind != Kind::fetch || !on_drive(jobs_.front().layer))
        return std::nullopt;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
}

void ActivationMover::run() {
    for (;;) {
        while (read_ahead()) {
        }
        std::optional<Job> job;
        {
            auto lock = context_.monitor.lock();
            if (reading_.empty())
                context_.monitor.wait(lock, [&] { return thread_.stopping() || !jobs_.empty(); });
            if (thread_.stopping())
                return;
            if (reading_.empty()) {
                job = std::move(jobs_.front());
                jobs_.pop_front();
            }
        }
        if (job)
            move(*job);
        else
            finish_read();
    }
}

void ActivationMover::move(const Job& job) {
    if (on_drive(job.layer)) {
        if (job.kind == Kind::save)
            save_to_drive(job);
        else
            begin_fetch(job);
        return;
    }
    copy_stream_->wait(job.ready);
    copy(job.kind == Kind::save ? Way::to_host : Way::to_device, job, host_place(job), 0,
         context_.layout.bytes);
    note_done(job, copy_stream_->record());
}

void ActivationMover::copy(Way way, const Job& job, std::byte* host, std::size_t at_bytes,
                           std::size_t bytes) {
    const StreamSpan event(*copy_stream_, context_.trace.inputs,
                           way == Way::to_host ? "save" : "fetch",
                           {.what = "block", .number = job.layer, .bytes = bytes});
    if (way == Way::to_host)
        copy_stream_->copy_to_host(host, job.place + at_bytes, bytes);
    else
        copy_stream_->copy_to_device(job.place + at_bytes, host, bytes);
}

/// The place on the device is free when all is in staging; the writes go on.
void ActivationMover::save_to_drive(const Job& job) {
    copy_stream_->wait(job.ready);
    for (std::size_t number = 0; number < spill_.pieces(); ++number) {
        Flight flight{.job = job, .number = number, .staging = take_staging()};
        copy(Way::to_host, job, flight.staging, number * activation_piece_bytes,
             device_bytes(number));
        copy_stream_->record().wait();
        flight.io = spill_.write({job.layer, job.micro_batch, number}, flight.staging);
        writing_.push_back(std::move(flight));
    }
    note_done(job, {});
}

/// Nothing is read while something may still be on its way to the drive.
void ActivationMover::begin_fetch(Job job) {
    while (!writing_.empty())
        finish_write();
    fetching_ = Fetching{.job = std::move(job)};
}

/// Starts the next read, of the input under way or of the next one, if there is staging for it.
bool ActivationMover::read_ahead() {
    if (!fetching_) {
        if (auto job = take_fetch_from_drive())
            begin_fetch(*std::move(job));
        else
            return false;
    }
    reclaim();
    if (free_staging_.empty() && !reading_.empty())
        return false;  // one of those frees some
    const auto& job = fetching_->job;
    Flight flight{.job = job, .number = fetching_->next++, .staging = take_staging()};
    flight.io = spill_.read({job.layer, job.micro_batch, flight.number}, flight.staging);
    reading_.push_back(std::move(flight));
    if (fetching_->next == spill_.pieces())
        fetching_.reset();
    return true;
}

void ActivationMover::finish_read() {
    auto flight = std::move(reading_.front());
    reading_.pop_front();
    wait_for(flight.io, TraceCause::nvme_read);
    spill_.verify({flight.job.layer, flight.job.micro_batch, flight.number}, flight.staging);
    if (flight.number == 0)
        copy_stream_->wait(flight.job.ready);
    copy(Way::to_device, flight.job, flight.staging, flight.number * activation_piece_bytes,
         device_bytes(flight.number));
    flight.copied = copy_stream_->record();
    if (flight.number + 1 == spill_.pieces())
        note_done(flight.job, flight.copied);
    landing_.push_back(std::move(flight));
}

void ActivationMover::finish_write() {
    auto flight = std::move(writing_.front());
    writing_.pop_front();
    wait_for(flight.io, TraceCause::nvme_write);
    free_staging_.push_back(flight.staging);
}

void ActivationMover::wait_for(PendingIo& io, TraceCause cause) {
    if (io.done()) {
        io.wait();  // for what went wrong
        return;
    }
    context_.trace.input_waits.begin_wait();
    io.wait();
    context_.trace.input_waits.end_wait(cause);
}

void ActivationMover::reclaim() {
    while (!landing_.empty() && landing_.front().copied.done()) {
        free_staging_.push_back(landing_.front().staging);
        landing_.pop_front();
    }
}

/// Some of it is free, or will be without anything more being asked for.
std::byte* ActivationMover::take_staging() {
    reclaim();
    if (free_staging_.empty() && !writing_.empty())
        finish_write();
    if (free_staging_.empty()) {
        landing_.front().copied.wait();
        reclaim();
    }
    auto* const piece = free_staging_.back();
    free_staging_.pop_back();
    return piece;
}

std::byte* ActivationMover::host_place(const Job& job) const noexcept {
    const auto inputs =
        host_layers_before_[job.layer] * context_.layout.micro_batches + job.micro_batch;
    return resident_.bytes().data() + inputs * activation_slot_bytes(context_.layout);
}

std::size_t ActivationMover::device_bytes(std::size_t number) const noexcept {
    return std::min(activation_piece_bytes,
                    context_.layout.bytes - number * activation_piece_bytes);
}

}  // namespace spillway::offload::detail
