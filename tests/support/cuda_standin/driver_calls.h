// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <functional>
#include <string>

#include "tests/support/cuda_standin/standin_state.h"

// What the functions of the look-alike have in common.

#define SPILLWAY_STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace spillway::standin {

namespace driver = cuda::driver;

/// The context that is current on the calling thread, as a device's number; -1 without one.
[[nodiscard]] int current_device();
[[nodiscard]] driver::Result push_context(int device);
[[nodiscard]] int pop_context();

enum class Needs { nothing, initialisation, context };

/// Of a context's handle.
[[nodiscard]] int device_of(driver::ContextHandle context);

/// Runs `body` with the lock held, unless the call is one that a test makes fail, the context is
/// lost or missing, or it comes from a host function.
template <typename Body>
driver::Result call(const char* function, Needs needs, const Body& body) {
    auto& s = state();
    std::unique_lock lock(s.mutex);
    const auto fault = s.call_faults.find(function);
    if (fault != s.call_faults.end() && --fault->second.left <= 0) {
        const int result = fault->second.result;
        s.call_faults.erase(fault);
        return result;
    }
    if (s.in_host_function.contains(std::this_thread::get_id()))
        s.report(std::string(function) + " was called from a host function, which CUDA forbids");
    if (needs != Needs::nothing && !s.initialised)
        return driver::not_initialised;
    if (needs == Needs::context && current_device() < 0)
        return driver::invalid_context;
    if (needs == Needs::context && s.error_of(current_device()) != 0)
        return s.error_of(current_device());
    return body(s, lock);
}

using Lock = std::unique_lock<std::mutex>;

[[nodiscard]] inline std::uintptr_t address_of(const void* data) {
    return reinterpret_cast<std::uintptr_t>(data);
}

/// Where a device's memory really lies, for as long as the operation runs. Takes the lock.
[[nodiscard]] DeviceMemory::Place find_device_memory(std::uintptr_t address, std::size_t bytes);

[[nodiscard]] inline StandinStream* stream_of(driver::StreamHandle handle) {
    auto* const stream = reinterpret_cast<StandinStream*>(handle);
    return state().streams.contains(stream) ? stream : nullptr;
}
/// Work of a device goes into its own streams while it is current. The driver lets some of it pass.
inline void require_current(StandinState& s, const char* function, int device) {
    if (device != current_device())
        s.report(std::string(function) + ": what belongs to device " + std::to_string(device) +
                 " is used while device " + std::to_string(current_device()) + " is current");
}
/// No stream's work may use memory of another device; what is nobody's shows when it executes.
inline void require_own_memory(StandinState& s, const char* function, int device,
                               std::uintptr_t begin, std::size_t bytes) {
    for (std::size_t other = 0; other < s.memory.size(); ++other)
        if (static_cast<int>(other) != device && s.memory[other].find(begin, bytes).data != nullptr)
            s.report(std::string(function) + " on device " + std::to_string(device) +
                     " uses memory of device " + std::to_string(other));
}
[[nodiscard]] inline StandinEvent* event_of(driver::EventHandle handle) {
    auto* const event = reinterpret_cast<StandinEvent*>(handle);
    return state().events.contains(event) ? event : nullptr;
}

}  // namespace spillway::standin
