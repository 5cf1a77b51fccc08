// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/driver_api.h"
#include "tests/support/cuda_standin/device_memory.h"
#include "tests/support/cuda_standin/kernel_registry.h"
#include "tests/support/cuda_standin/order_checker.h"
#include "tests/support/cuda_standin/standin.h"

namespace spillway::standin {

using Clock = std::chrono::steady_clock;

/// One recording of an event.
struct Recording {
    bool happened = false;
    Clock::time_point at;
    OrderChecker::Clock knowledge;
};

struct StandinEvent {
    unsigned flags = 0;
    int device = 0;
    std::shared_ptr<Recording> last;  ///< null: never recorded, counts as happened
};

struct StandinStream {
    OrderChecker::Actor actor = 0;
    int device = 0;
    std::deque<std::function<void()>> queue;
    bool busy = false, closing = false;
    std::mt19937_64 random;
    std::thread worker;
};

/// A k-th time that something is to fail.
struct Fault {
    int left = 0;
    int result = 0;
    int device = -1;  ///< of the stream; -1: any
};

/// All that the look-alike knows. Every function of it that begins with an underscore-free verb is
/// called with `mutex` held unless it says otherwise.
struct StandinState {
    std::mutex mutex;
    std::condition_variable changed;
    Settings settings;
    std::map<int, int> lost;  ///< a device's error, which every call in its context returns
    bool initialised = false;
    std::vector<std::string> violations;
    std::map<std::string, Fault> call_faults, stream_faults;
    OrderChecker order;
    std::vector<DeviceMemory> memory{1};
    std::map<std::uintptr_t, std::size_t> registered;
    std::set<StandinStream*> streams;
    std::set<StandinEvent*> events;
    std::set<void*> modules;
    OrderChecker::Actor actors = 0;
    Counts done;  ///< copies, kernels, contexts made and waits so far
    std::map<int, std::size_t> contexts;
    std::set<std::pair<int, int>> peers;  ///< the first reaches the second's memory
    std::set<std::thread::id> in_host_function;

    [[nodiscard]] int error_of(int device) const {
        const auto found = lost.find(device);
        return found == lost.end() ? 0 : found->second;
    }
    void report(std::string text) { violations.push_back(std::move(text)); }
    void report(std::vector<std::string> texts) {
        for (auto& text : texts)
            report(std::move(text));
    }
};

[[nodiscard]] StandinState& state();

/// Puts `run`, which is executed without the lock, into the stream. With the lock held.
void queue_on(StandinStream& stream, std::function<void()> run);
/// The worker of a stream; takes the lock.
void work(StandinStream& stream);
/// The device of the stream whose worker this is; -1 on other threads.
[[nodiscard]] int executing_device();
/// An operation found the context lost, or was told to fail. Takes the lock.
[[nodiscard]] bool fails_in_stream(const std::string& operation);
void lose_context(int result, const std::string& why);

}  // namespace spillway::standin
