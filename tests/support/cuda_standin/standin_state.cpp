// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/cuda_standin/standin_state.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>

namespace spillway::standin {

namespace {

constexpr const char* report_variable = "SPILLWAY_STANDIN_REPORT";
constexpr const char* capability_variable = "SPILLWAY_STANDIN_CAPABILITY";
constexpr const char* devices_variable = "SPILLWAY_STANDIN_DEVICES";
constexpr const char* fault_variable = "SPILLWAY_STANDIN_FAULT";

/// For a test that runs a whole program, when that ends.
void write_report() {
    const auto seen = counts();
    std::ofstream file(std::getenv(report_variable));
    file << fmt::format(
        "kernels {}\ncopies {}\npageable_copies {}\nallocations {}\nregistrations {}\n"
        "contexts_made {}\npeer_copies {}\npeers {}\n",
        seen.kernels, seen.copies, seen.pageable_copies, seen.allocations, seen.registrations,
        seen.contexts_made, seen.peer_copies, seen.peers);
    for (const auto& violation : violations())
        file << "violation " << violation << '\n';
}

}  // namespace

StandinState& state() {
    // Never destroyed: workers and clients may use it while the process ends.
    static auto* const the_state = [] {
        auto* const made = new StandinState;
        if (std::getenv(report_variable) != nullptr)
            std::atexit(write_report);
        if (const char* const major = std::getenv(capability_variable))
            made->settings.capability_major = std::atoi(major);
        if (const char* const devices = std::getenv(devices_variable)) {
            made->settings.devices = std::atoi(devices);
            made->memory.resize(static_cast<std::size_t>(made->settings.devices));
        }
        if (const char* const fault = std::getenv(fault_variable)) {
            std::istringstream words(fault);
            std::string operation;
            Fault planted;
            words >> planted.device >> operation >> planted.left >> planted.result;
            made->stream_faults[operation] = planted;
        }
        return made;
    }();
    return *the_state;
}

void queue_on(StandinStream& stream, std::function<void()> run) {
    stream.queue.push_back(std::move(run));
    state().changed.notify_all();
}

namespace {

thread_local int executing_on = -1;

}  // namespace

int executing_device() {
    return executing_on;
}

void work(StandinStream& stream) {
    executing_on = stream.device;
    auto& s = state();
    std::unique_lock lock(s.mutex);
    while (true) {
        s.changed.wait(lock, [&] { return stream.closing || !stream.queue.empty(); });
        if (stream.queue.empty())
            return;
        auto run = std::move(stream.queue.front());
        stream.queue.pop_front();
        stream.busy = true;
        const double most = s.settings.max_delay_s;
        const double delay =
            most > 0 ? std::uniform_real_distribution<double>(0, most)(stream.random) : 0;
        lock.unlock();
        if (delay > 0)
            std::this_thread::sleep_for(std::chrono::duration<double>(delay));
        run();
        run = nullptr;
        lock.lock();
        stream.busy = false;
        s.changed.notify_all();
    }
}

bool fails_in_stream(const std::string& operation) {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    if (s.error_of(executing_on) != 0)
        return true;
    const auto fault = s.stream_faults.find(operation);
    if (fault == s.stream_faults.end() ||
        (fault->second.device >= 0 && fault->second.device != executing_on) ||
        --fault->second.left > 0)
        return false;
    s.lost[executing_on] = fault->second.result;
    s.stream_faults.erase(fault);
    return true;
}

void lose_context(int result, const std::string& why) {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    s.report(why);
    s.lost.emplace(executing_on, result);
}

// ---------------------------------------------------------------- the tests' side

void reset(const Settings& settings) {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    s.settings = settings;
    s.lost.clear();
    s.peers.clear();
    s.violations.clear();
    s.call_faults.clear();
    s.stream_faults.clear();
    s.order = {};
    s.memory = std::vector<DeviceMemory>(static_cast<std::size_t>(settings.devices));
    s.registered.clear();
    s.done = {};
    s.contexts.clear();
}

void fail_call(const std::string& function, int k, int result) {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    s.call_faults[function] = {k, result, -1};
}

void fail_in_stream(const std::string& operation, int k, int result, int device) {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    s.stream_faults[operation] = {k, result, device};
}

std::vector<std::string> violations() {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    return s.violations;
}

namespace {

void host_uses(const void* data, std::size_t bytes, OrderChecker::Access access) {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    s.report(s.order.operation(OrderChecker::host, "the host", {{begin, begin + bytes, access}}));
}

}  // namespace

void host_reads(const void* data, std::size_t bytes) {
    host_uses(data, bytes, OrderChecker::Access::reads);
}
void host_writes(const void* data, std::size_t bytes) {
    host_uses(data, bytes, OrderChecker::Access::writes);
}

Counts counts() {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    Counts counts = s.done;
    for (const DeviceMemory& memory : s.memory) {
        counts.allocations += memory.allocations();
        counts.allocated_bytes += memory.bytes();
    }
    counts.peers = s.peers.size();
    counts.streams = s.streams.size();
    counts.events = s.events.size();
    counts.modules = s.modules.size();
    for (const auto& [device, retained] : s.contexts)
        counts.contexts += retained;
    counts.registrations = s.registered.size();
    for (const auto& [begin, bytes] : s.registered)
        counts.page_locked_bytes += bytes;
    return counts;
}

std::span<const std::byte> emulated_kernels() {
    static constexpr char text[] = "spillway: kernels compiled for the host";
    return std::as_bytes(std::span(text));
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const auto& [name, kernel] : kernel_registry())
        names.push_back(name);
    return names;
}

}  // namespace spillway::standin
