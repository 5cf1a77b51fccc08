// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Streams, events, copies.
#include <cstring>

#include <fmt/format.h>

#include "tests/support/cuda_standin/driver_calls.h"

namespace spillway::standin {
namespace {

using Access = OrderChecker::Access;

enum class Locked { no, yes, crosses };

/// Whether host memory is page-locked as a whole.
Locked page_locked(const StandinState& s, std::uintptr_t begin, std::size_t bytes) {
    for (const auto& [registered, length] : s.registered) {
        if (registered >= begin + bytes || begin >= registered + length)
            continue;
        return registered <= begin && begin + bytes <= registered + length ? Locked::yes
                                                                           : Locked::crosses;
    }
    return Locked::no;
}

struct Copy {
    bool to_device;
    std::uintptr_t device, host;
    std::size_t device_pitch, host_pitch, row_bytes, rows;

    [[nodiscard]] std::size_t device_bytes() const { return (rows - 1) * device_pitch + row_bytes; }
    [[nodiscard]] std::size_t host_bytes() const { return (rows - 1) * host_pitch + row_bytes; }

    void execute() const {
        if (fails_in_stream("copy"))
            return;
        const auto place = find_device_memory(device, device_bytes());
        if (place.data == nullptr)
            return lose_context(
                driver::illegal_address,
                fmt::format("a copy of {} bytes uses device memory at {:#x} that is freed or was "
                            "never allocated",
                            row_bytes * rows, device));
        for (std::size_t row = 0; row < rows; ++row) {
            std::byte* const there = place.data + row * device_pitch;
            auto* const here = reinterpret_cast<std::byte*>(host + row * host_pitch);
            std::memcpy(to_device ? there : here, to_device ? here : there, row_bytes);
        }
    }
};

driver::Result queue_copy(const char* function, const Copy& copy, driver::StreamHandle handle) {
    return call(function, Needs::context, [&](StandinState& s, Lock&) {
        auto* const stream = stream_of(handle);
        if (stream == nullptr)
            return driver::invalid_handle;
        require_current(s, function, stream->device);
        require_own_memory(s, function, stream->device, copy.device, copy.device_bytes());
        const auto locked = page_locked(s, copy.host, copy.host_bytes());
        if (locked == Locked::crosses)
            return driver::invalid_value;
        ++s.done.copies;
        if (locked == Locked::no) {
            ++s.done.pageable_copies;
            if (s.settings.pageable == Settings::Pageable::violation)
                s.report(fmt::format("{} of {} bytes of host memory that is not page-locked",
                                     function, copy.host_bytes()));
        }
        const auto what =
            fmt::format("a copy {} on stream {}", copy.to_device ? "to the device" : "to the host",
                        stream->actor);
        s.report(s.order.operation(stream->actor, what,
                                   {{copy.device, copy.device + copy.device_bytes(),
                                     copy.to_device ? Access::writes : Access::reads},
                                    {copy.host, copy.host + copy.host_bytes(),
                                     copy.to_device ? Access::reads : Access::writes}}));
        queue_on(*stream, [copy] { copy.execute(); });
        return driver::success;
    });
}

/// Waits, with the lock, until a stream has nothing to do.
void wait_until_idle(Lock& lock, StandinStream& stream) {
    state().changed.wait(lock, [&] { return stream.queue.empty() && !stream.busy; });
}

}  // namespace

// ---------------------------------------------------------------- streams

SPILLWAY_STANDIN_EXPORT driver::Result cuStreamCreate(driver::StreamHandle* handle, unsigned) {
    return call("cuStreamCreate", Needs::context, [&](StandinState& s, Lock&) {
        auto* const stream = new StandinStream;
        stream->actor = ++s.actors;
        stream->device = current_device();
        std::seed_seq seeds{s.settings.seed, stream->actor};
        stream->random.seed(seeds);
        stream->worker = std::thread([stream] { work(*stream); });
        s.streams.insert(stream);
        *handle = reinterpret_cast<driver::StreamHandle>(stream);
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuStreamDestroy_v2(driver::StreamHandle handle) {
    StandinStream* destroyed = nullptr;
    const auto result = call("cuStreamDestroy", Needs::nothing, [&](StandinState& s, Lock&) {
        destroyed = stream_of(handle);
        if (destroyed == nullptr)
            return driver::invalid_handle;
        destroyed->closing = true;
        s.streams.erase(destroyed);
        s.changed.notify_all();
        return driver::success;
    });
    if (destroyed != nullptr) {
        destroyed->worker.join();
        delete destroyed;
    }
    return result;
}

SPILLWAY_STANDIN_EXPORT driver::Result cuStreamSynchronize(driver::StreamHandle handle) {
    return call("cuStreamSynchronize", Needs::context, [&](StandinState& s, Lock& lock) {
        auto* const stream = stream_of(handle);
        if (stream == nullptr)
            return driver::invalid_handle;
        const int device = stream->device;
        const auto knowledge = s.order.knowledge(stream->actor);
        ++s.done.spinning_waits;
        wait_until_idle(lock, *stream);
        s.order.learn(OrderChecker::host, knowledge);
        return s.error_of(device);
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuStreamWaitEvent(driver::StreamHandle stream_handle,
                                                         driver::EventHandle event_handle,
                                                         unsigned) {
    return call("cuStreamWaitEvent", Needs::context, [&](StandinState& s, Lock&) {
        auto* const stream = stream_of(stream_handle);
        const auto* const event = event_of(event_handle);
        if (stream == nullptr || event == nullptr)
            return driver::invalid_handle;
        require_current(s, "cuStreamWaitEvent", stream->device);
        if (event->last == nullptr)
            return driver::success;
        s.order.learn(stream->actor, event->last->knowledge);
        queue_on(*stream, [recording = event->last] {
            std::unique_lock lock(state().mutex);
            state().changed.wait(lock, [&] { return recording->happened; });
        });
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuLaunchHostFunc(driver::StreamHandle handle,
                                                        driver::HostFunction function,
                                                        void* argument) {
    return call("cuLaunchHostFunc", Needs::context, [&](StandinState& s, Lock&) {
        auto* const stream = stream_of(handle);
        if (stream == nullptr)
            return driver::invalid_handle;
        require_current(s, "cuLaunchHostFunc", stream->device);
        s.report(s.order.operation(stream->actor, "a host function", {}));
        queue_on(*stream, [function, argument] {
            if (fails_in_stream("host function"))
                return;
            const auto inside = [](bool is) {
                const std::scoped_lock lock(state().mutex);
                if (is)
                    state().in_host_function.insert(std::this_thread::get_id());
                else
                    state().in_host_function.erase(std::this_thread::get_id());
            };
            inside(true);
            function(argument);
            inside(false);
        });
        return driver::success;
    });
}

// ---------------------------------------------------------------- events

SPILLWAY_STANDIN_EXPORT driver::Result cuEventCreate(driver::EventHandle* handle, unsigned flags) {
    return call("cuEventCreate", Needs::context, [&](StandinState& s, Lock&) {
        if ((flags & ~(driver::event_blocking | driver::event_without_timing)) != 0)
            return driver::invalid_value;
        auto* const event = new StandinEvent{flags, current_device(), nullptr};
        s.events.insert(event);
        *handle = reinterpret_cast<driver::EventHandle>(event);
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuEventDestroy_v2(driver::EventHandle handle) {
    return call("cuEventDestroy", Needs::nothing, [&](StandinState& s, Lock&) {
        auto* const event = event_of(handle);
        if (event == nullptr)
            return driver::invalid_handle;
        s.events.erase(event);
        delete event;
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuEventRecord(driver::EventHandle event_handle,
                                                     driver::StreamHandle stream_handle) {
    return call("cuEventRecord", Needs::context, [&](StandinState& s, Lock&) {
        auto* const event = event_of(event_handle);
        auto* const stream = stream_of(stream_handle);
        if (event == nullptr || stream == nullptr || event->device != stream->device)
            return driver::invalid_handle;
        require_current(s, "cuEventRecord", stream->device);
        s.report(s.order.operation(stream->actor, "an event", {}));
        auto recording = std::make_shared<Recording>();
        recording->knowledge = s.order.knowledge(stream->actor);
        event->last = recording;
        queue_on(*stream, [recording] {
            const std::scoped_lock lock(state().mutex);
            recording->happened = true;
            recording->at = Clock::now();
            state().changed.notify_all();
        });
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuEventQuery(driver::EventHandle handle) {
    return call("cuEventQuery", Needs::context, [&](StandinState& s, Lock&) {
        const auto* const event = event_of(handle);
        if (event == nullptr)
            return driver::invalid_handle;
        if (event->last == nullptr)
            return driver::success;
        if (!event->last->happened)
            return driver::not_ready;
        s.order.learn(OrderChecker::host, event->last->knowledge);
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuEventSynchronize(driver::EventHandle handle) {
    return call("cuEventSynchronize", Needs::context, [&](StandinState& s, Lock& lock) {
        const auto* const event = event_of(handle);
        if (event == nullptr)
            return driver::invalid_handle;
        const int device = event->device;
        if (event->last != nullptr) {
            const auto recording = event->last;
            if ((event->flags & driver::event_blocking) == 0)
                ++s.done.spinning_waits;
            s.changed.wait(lock, [&] { return recording->happened; });
            s.order.learn(OrderChecker::host, recording->knowledge);
        }
        return s.error_of(device);
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuEventElapsedTime(float* ms, driver::EventHandle begin,
                                                          driver::EventHandle end) {
    return call("cuEventElapsedTime", Needs::context, [&](StandinState&, Lock&) {
        const auto* const from = event_of(begin);
        const auto* const to = event_of(end);
        if (from == nullptr || to == nullptr || from->last == nullptr || to->last == nullptr ||
            ((from->flags | to->flags) & driver::event_without_timing) != 0)
            return driver::invalid_handle;
        if (!from->last->happened || !to->last->happened)
            return driver::not_ready;
        *ms = std::chrono::duration<float, std::milli>(to->last->at - from->last->at).count();
        return driver::success;
    });
}

// ---------------------------------------------------------------- copies

SPILLWAY_STANDIN_EXPORT driver::Result cuMemcpyHtoDAsync_v2(driver::Address to, const void* from,
                                                            std::size_t bytes,
                                                            driver::StreamHandle stream) {
    return queue_copy("cuMemcpyHtoDAsync", {true, to, address_of(from), bytes, bytes, bytes, 1},
                      stream);
}

SPILLWAY_STANDIN_EXPORT driver::Result cuMemcpyDtoHAsync_v2(void* to, driver::Address from,
                                                            std::size_t bytes,
                                                            driver::StreamHandle stream) {
    return queue_copy("cuMemcpyDtoHAsync", {false, from, address_of(to), bytes, bytes, bytes, 1},
                      stream);
}

SPILLWAY_STANDIN_EXPORT driver::Result cuMemcpy2DAsync_v2(const driver::RowsDescriptor* rows,
                                                          driver::StreamHandle stream) {
    constexpr std::size_t largest_pitch = 0x7FFF'FFFF;
    const bool up = rows->from_type == driver::MemoryType::host;
    const bool one_each = up == (rows->to_type == driver::MemoryType::device);
    if (!one_each || rows->row_bytes == 0 || rows->rows == 0 ||
        rows->from_pitch < rows->row_bytes || rows->to_pitch < rows->row_bytes ||
        rows->from_pitch > largest_pitch || rows->to_pitch > largest_pitch)
        return driver::invalid_value;
    return queue_copy(
        "cuMemcpy2DAsync",
        {up, up ? rows->to_device : rows->from_device,
         address_of(up ? rows->from_host : rows->to_host), up ? rows->to_pitch : rows->from_pitch,
         up ? rows->from_pitch : rows->to_pitch, rows->row_bytes, rows->rows},
        stream);
}

// ---------------------------------------------------------------- between devices

SPILLWAY_STANDIN_EXPORT driver::Result cuMemcpyPeerAsync(
    driver::Address to, driver::ContextHandle to_context, driver::Address from,
    driver::ContextHandle from_context, std::size_t bytes, driver::StreamHandle handle) {
    constexpr const char* function = "cuMemcpyPeerAsync";
    return call(function, Needs::context, [&](StandinState& s, Lock&) {
        auto* const stream = stream_of(handle);
        if (stream == nullptr)
            return driver::invalid_handle;
        if (bytes == 0 || !s.contexts.contains(device_of(to_context)) ||
            !s.contexts.contains(device_of(from_context)))
            return driver::invalid_value;
        require_current(s, function, stream->device);
        require_current(s, function, device_of(to_context));
        require_own_memory(s, function, device_of(to_context), to, bytes);
        require_own_memory(s, function, device_of(from_context), from, bytes);
        ++s.done.peer_copies;
        s.report(s.order.operation(
            stream->actor, fmt::format("a copy from a peer on stream {}", stream->actor),
            {{to, to + bytes, Access::writes}, {from, from + bytes, Access::reads}}));
        queue_on(*stream, [to, from, bytes] {
            if (fails_in_stream("copy from peer"))
                return;
            const auto source = find_device_memory(from, bytes);
            const auto target = find_device_memory(to, bytes);
            if (source.data == nullptr || target.data == nullptr)
                return lose_context(driver::illegal_address,
                                    fmt::format("a copy of {} bytes between devices uses memory "
                                                "that is freed or was never allocated",
                                                bytes));
            std::memcpy(target.data, source.data, bytes);
        });
        return driver::success;
    });
}

}  // namespace spillway::standin
