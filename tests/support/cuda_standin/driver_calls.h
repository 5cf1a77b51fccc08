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
    if (needs == Needs::context && s.lost != 0)
        return s.lost;
    if (needs == Needs::context && current_device() < 0)
        return driver::invalid_context;
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
[[nodiscard]] inline StandinEvent* event_of(driver::EventHandle handle) {
    auto* const event = reinterpret_cast<StandinEvent*>(handle);
    return state().events.contains(event) ? event : nullptr;
}

}  // namespace spillway::standin
