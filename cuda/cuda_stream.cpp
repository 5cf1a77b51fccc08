// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cuda_stream.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "cuda/cuda_place.h"

namespace spillway::cuda {
namespace {

/// What CU_DEVICE_ATTRIBUTE_MAX_PITCH is on every device.
constexpr std::size_t largest_pitch = 0x7FFF'FFFF;

driver::Address address_of(const std::byte* device) {
    return static_cast<driver::Address>(reinterpret_cast<std::uintptr_t>(device));
}

driver::RowsDescriptor descriptor_of(CopyDirection direction, const RowCopy& copy) {
    const bool up = direction == CopyDirection::to_device;
    driver::RowsDescriptor rows{};
    rows.from_type = up ? driver::MemoryType::host : driver::MemoryType::device;
    rows.to_type = up ? driver::MemoryType::device : driver::MemoryType::host;
    rows.from_host = up ? copy.from : nullptr;
    rows.from_device = up ? 0 : address_of(copy.from);
    rows.to_host = up ? nullptr : copy.to;
    rows.to_device = up ? address_of(copy.to) : 0;
    rows.from_pitch = copy.from_pitch;
    rows.to_pitch = copy.to_pitch;
    rows.row_bytes = copy.row_bytes;
    rows.rows = copy.rows;
    return rows;
}

}  // namespace

/// A function on its way through the driver; the stream owns it until it has run.
struct CudaStream::HostCall {
    std::shared_ptr<CudaStreamLog> log;
    std::uint64_t call;
    std::function<void()> function;
    std::chrono::nanoseconds took{0};
    std::atomic<bool> finished{false};  ///< set last; then the stream may destroy it

    HostCall(std::shared_ptr<CudaStreamLog> in, std::uint64_t number, std::function<void()> what)
        : log(std::move(in)), call(number), function(std::move(what)) {}
};

CudaStream::CudaStream(std::string_view name, std::shared_ptr<CudaCore> core,
                       std::shared_ptr<CudaMemory> memory)
    : name_(name), core_(std::move(core)), memory_(std::move(memory)) {
    const auto scope = core_->current();
    core_->check(core_->driver()->stream_create(&stream_, driver::stream_non_blocking),
                 "cuStreamCreate", purpose("creation"));
}

CudaStream::~CudaStream() {
    try {
        const auto scope = core_->current();
        // The work in flight points at host_calls_.
        core_->driver()->stream_synchronize(stream_);
        const std::scoped_lock lock(mutex_);
        end_kernel_run();
        count_finished();
        core_->driver()->stream_destroy(stream_);
    } catch (const DriverError&) {
        // A lost context executes nothing any more, and its loss is thrown to whoever waits.
    }
    // Logs of streams that waited for each other own each other until they have been looked at.
    static_cast<void>(log_->failure_before(std::numeric_limits<std::uint64_t>::max()));
    for (const Timed& timed : timed_) {
        core_->return_event(timed.begin, driver::event_default);
        core_->return_event(timed.end, driver::event_default);
    }
}

std::string CudaStream::purpose(std::string_view call) const {
    return fmt::format("{} on stream '{}'", call, name_);
}

void CudaStream::refuse_from_inside() const {
    if (log_->running.load() == std::this_thread::get_id())
        throw std::logic_error(fmt::format(
            "stream '{}': a kernel called the stream it runs on; call from outside", name_));
}

// ---------------------------------------------------------------- copies

void CudaStream::copy_to_device(std::byte* device_to, const std::byte* host_from,
                                std::size_t bytes) {
    copy("copy_to_device", CopyDirection::to_device,
         {device_to, bytes, host_from, bytes, bytes, 1});
}

void CudaStream::copy_to_host(std::byte* host_to, const std::byte* device_from, std::size_t bytes) {
    copy("copy_to_host", CopyDirection::to_host, {host_to, bytes, device_from, bytes, bytes, 1});
}

void CudaStream::copy_rows_to_device(std::byte* device_to, std::size_t to_pitch,
                                     const std::byte* host_from, std::size_t from_pitch,
                                     std::size_t row_bytes, std::size_t rows) {
    copy("copy_rows_to_device", CopyDirection::to_device,
         {device_to, to_pitch, host_from, from_pitch, row_bytes, rows});
}

void CudaStream::copy(std::string_view call, CopyDirection direction, const RowCopy& copy) {
    copy.check(call);
    if (copy.bytes() == 0)
        return;
    check_pairing(call, direction, copy);
    refuse_from_inside();
    const std::scoped_lock lock(mutex_);
    if (log_->failed())
        return;
    const auto scope = core_->current();
    count_finished();
    end_kernel_run();
    const auto begin = timestamp();
    copy_pieces(direction, copy);
    timed_.push_back({direction == CopyDirection::to_device ? Work::to_device : Work::to_host,
                      begin, timestamp()});
    core_->counters.count_copy(direction, copy.bytes(), {});
}

void CudaStream::check_pairing(std::string_view call, CopyDirection direction,
                               const RowCopy& copy) const {
    const bool up = direction == CopyDirection::to_device;
    const auto* const device = up ? copy.to : copy.from;
    const auto* const host = up ? copy.from : copy.to;
    const auto device_bytes = up ? copy.to_extent_bytes() : copy.from_extent_bytes();
    const auto host_bytes = up ? copy.from_extent_bytes() : copy.to_extent_bytes();
    const auto refuse = [&](std::string_view side, const std::byte* data, std::size_t bytes,
                            std::string_view problem) {
        throw std::invalid_argument(
            fmt::format("{} on stream '{}' of {}: the {}, {} bytes at {}, {}", call, name_,
                        core_->name(), side, bytes, static_cast<const void*>(data), problem));
    };
    if (!memory_->allocated(device, device_bytes))
        refuse(up ? "destination" : "source", device, device_bytes,
               "is not device memory, is freed or crosses the end of its buffer");
    if (memory_->overlaps(host, host_bytes))
        refuse(up ? "source" : "destination", host, host_bytes,
               "is device memory; host memory is needed");
}

void CudaStream::copy_pieces(CopyDirection direction, const RowCopy& copy) {
    const bool up = direction == CopyDirection::to_device;
    RowCopy rest = copy;
    const auto skip_rows = [&](std::size_t rows) {
        rest.to += rows * rest.to_pitch;
        rest.from += rows * rest.from_pitch;
        rest.rows -= rows;
    };
    while (rest.rows > 0) {
        const auto* const host = up ? rest.from : rest.to;
        const auto pitch = up ? rest.from_pitch : rest.to_pitch;
        const auto extent = up ? rest.from_extent_bytes() : rest.to_extent_bytes();
        const auto inside = core_->bytes_to_edge(host, extent);
        if (rest.rows == 1 || inside < rest.row_bytes ||
            std::max(rest.to_pitch, rest.from_pitch) > largest_pitch) {
            RowCopy row = rest;
            row.rows = 1;
            copy_row(direction, row);
            skip_rows(1);
            continue;
        }
        RowCopy together = rest;
        together.rows = std::min(rest.rows, (inside - rest.row_bytes) / pitch + 1);
        copy_together(direction, together);
        skip_rows(together.rows);
    }
}

void CudaStream::copy_together(CopyDirection direction, const RowCopy& copy) {
    const auto rows = descriptor_of(direction, copy);
    core_->check(core_->driver()->copy_rows(&rows, stream_), "cuMemcpy2DAsync",
                 purpose("a copy of rows"));
}

void CudaStream::copy_row(CopyDirection direction, const RowCopy& row) {
    const auto& driver = core_->driver();
    const bool up = direction == CopyDirection::to_device;
    for (std::size_t done = 0; done < row.row_bytes;) {
        const auto bytes =
            core_->bytes_to_edge((up ? row.from : row.to) + done, row.row_bytes - done);
        if (up)
            core_->check(
                driver->copy_to_device(address_of(row.to + done), row.from + done, bytes, stream_),
                "cuMemcpyHtoDAsync", purpose("a copy"));
        else
            core_->check(
                driver->copy_to_host(row.to + done, address_of(row.from + done), bytes, stream_),
                "cuMemcpyDtoHAsync", purpose("a copy"));
        done += bytes;
    }
}

void CudaStream::copy_from_peer(std::byte* device_to, const Device& peer,
                                const std::byte* peer_from, std::size_t bytes) {
    const auto& place = CudaPlace::of(peer, core_->name());
    if (bytes == 0)
        return;
    const auto require = [&](const CudaMemory& memory, std::string_view owner,
                             const std::byte* data) {
        if (!memory.allocated(data, bytes))
            throw std::invalid_argument(fmt::format(
                "copy_from_peer on stream '{}' of {}: {} bytes at {} are not memory of {}, are "
                "freed or cross the end of their buffer",
                name_, core_->name(), bytes, static_cast<const void*>(data), owner));
    };
    require(*memory_, core_->name(), device_to);
    require(place.memory(), place.core().name(), peer_from);
    refuse_from_inside();
    const std::scoped_lock lock(mutex_);
    if (log_->failed())
        return;
    const auto scope = core_->current();
    count_finished();
    end_kernel_run();
    core_->check(core_->driver()->copy_from_peer(address_of(device_to), core_->context(),
                                                 address_of(peer_from), place.core().context(),
                                                 bytes, stream_),
                 "cuMemcpyPeerAsync", purpose("a copy from " + place.core().name()));
}

// ---------------------------------------------------------------- kernels and host functions

void CudaStream::check_uses(const char* kernel, std::span<const MemoryUse> uses) const {
    for (const MemoryUse& use : uses)
        if (!memory_->allocated(use.data, use.bytes))
            throw std::invalid_argument(fmt::format(
                "kernel '{}' on stream '{}' of {}: '{}', {} bytes at {}, is not device memory, is "
                "freed or crosses the end of its buffer",
                kernel, name_, core_->name(), use.parameter, use.bytes,
                static_cast<const void*>(use.data)));
}

template <typename Call>
void CudaStream::add_to_kernel_run(const Call& call) {
    const std::scoped_lock lock(mutex_);
    if (log_->failed())
        return;
    const auto scope = core_->current();
    count_finished();
    if (!kernel_run_)
        kernel_run_ = timestamp();
    call(stream_);
}

void CudaStream::launch_kernel(const char* kernel, const LaunchShape& shape, void* parameters,
                               std::span<const MemoryUse> uses) {
    check_uses(kernel, uses);
    refuse_from_inside();
    const auto function = core_->kernel(kernel);
    add_to_kernel_run([&](driver::StreamHandle on) {
        void* pointers[] = {parameters};
        core_->check(core_->driver()->launch_kernel(function, shape.blocks, 1, 1, shape.threads, 1,
                                                    1, shape.shared_bytes, on, pointers, nullptr),
                     "cuLaunchKernel", purpose(fmt::format("kernel '{}'", kernel)));
    });
}

void CudaStream::call_library(const char* name, std::span<const MemoryUse> uses,
                              const std::function<void(driver::StreamHandle)>& call) {
    check_uses(name, uses);
    refuse_from_inside();
    add_to_kernel_run(call);
}

void CudaStream::launch(const char*, std::function<void()> kernel) {
    refuse_from_inside();
    const std::scoped_lock lock(mutex_);
    const auto call = log_->next_call();
    if (log_->failed())
        return;
    const auto scope = core_->current();
    count_finished();
    end_kernel_run();
    auto& queued = host_calls_.emplace_back(log_, call, std::move(kernel));
    const auto result = core_->driver()->launch_host(stream_, &CudaStream::run_host_call, &queued);
    if (result != driver::success)
        host_calls_.pop_back();
    core_->check(result, "cuLaunchHostFunc", purpose("a host function"));
}

void CudaStream::run_host_call(void* call) {
    auto& queued = *static_cast<HostCall*>(call);
    CudaStreamLog& log = *queued.log;
    log.running.store(std::this_thread::get_id());
    const auto began = std::chrono::steady_clock::now();
    try {
        // Also destroys what it holds before any event behind it happens.
        const auto function = std::exchange(queued.function, nullptr);
        if (!log.failure_before(queued.call))
            function();
    } catch (...) {
        log.fail(queued.call, std::current_exception());
    }
    queued.took = std::chrono::steady_clock::now() - began;
    log.running.store(std::thread::id());
    queued.finished.store(true);  // `log` belongs to the stream's owners, `queued` to nobody now
}

// ---------------------------------------------------------------- order

Event CudaStream::record() {
    return Event(record_state());
}

std::shared_ptr<CudaEventState> CudaStream::record_state() {
    refuse_from_inside();
    const std::scoped_lock lock(mutex_);
    const auto scope = core_->current();
    count_finished();
    end_kernel_run();
    auto state = std::make_shared<CudaEventState>(core_, log_, log_->next_call());
    core_->check(core_->driver()->event_record(state->handle(), stream_), "cuEventRecord",
                 purpose("an event"));
    return state;
}

void CudaStream::wait(const Event& event) {
    if (event.state() == nullptr)
        return;
    auto state = std::dynamic_pointer_cast<CudaEventState>(event.state());
    if (state == nullptr) {
        // No GPU's: only the host can wait for it, and does so in the stream's order.
        launch("wait", [event] { event.wait(); });
        return;
    }
    refuse_from_inside();
    const std::scoped_lock lock(mutex_);
    const auto scope = core_->current();
    end_kernel_run();
    core_->check(core_->driver()->stream_wait(stream_, state->handle(), 0), "cuStreamWaitEvent",
                 purpose("waiting for an event"));
    log_->depend(log_->next_call(), state->log(), state->call());
}

void CudaStream::synchronize() {
    // Not cuStreamSynchronize, whose wait spins.
    const auto end = record_state();
    end->wait_for_device(purpose("waiting for all work"));
    {
        const std::scoped_lock lock(mutex_);
        const auto scope = core_->current();
        count_finished();
    }
    if (const auto failure = end->failure())
        std::rethrow_exception(failure);
}

// ---------------------------------------------------------------- time

driver::EventHandle CudaStream::timestamp() {
    const auto event = core_->take_event(driver::event_default);
    const auto result = core_->driver()->event_record(event, stream_);
    if (result != driver::success)
        core_->return_event(event, driver::event_default);
    core_->check(result, "cuEventRecord", purpose("a time stamp"));
    return event;
}

void CudaStream::end_kernel_run() {
    if (!kernel_run_)
        return;
    const auto begin = *std::exchange(kernel_run_, std::nullopt);
    timed_.push_back({Work::kernels, begin, timestamp()});
}

void CudaStream::count_finished() {
    while (!host_calls_.empty() && host_calls_.front().finished.load()) {
        core_->counters.count_kernel(host_calls_.front().took);
        host_calls_.pop_front();
    }
    const auto& driver = core_->driver();
    while (!timed_.empty() && driver->event_query(timed_.front().end) == driver::success) {
        const Timed timed = timed_.front();
        timed_.pop_front();
        float ms = 0;
        driver->event_elapsed_ms(&ms, timed.begin, timed.end);
        const auto busy = std::chrono::nanoseconds(std::llround(static_cast<double>(ms) * 1e6));
        if (timed.work == Work::kernels)
            core_->counters.count_kernel(busy);
        else
            core_->counters.count_copy(
                timed.work == Work::to_device ? CopyDirection::to_device : CopyDirection::to_host,
                0, busy);
        core_->return_event(timed.begin, driver::event_default);
        core_->return_event(timed.end, driver::event_default);
    }
}

}  // namespace spillway::cuda
