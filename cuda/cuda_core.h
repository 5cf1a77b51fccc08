// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/device_counters.h"
#include "cuda/driver.h"

namespace spillway::cuda {

/// Makes a device's context the calling thread's for one scope, and puts back the one before, which
/// may be another library's.
class CurrentContext {
  public:
    CurrentContext(const Driver& driver, driver::ContextHandle context);
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

  private:
    const Driver& driver_;
};

/// What a CUDA device, its streams, events and registrations share; the last of them takes it
/// along. Thread-safe.
class CudaCore {
  public:
    CudaCore(std::shared_ptr<const Driver> driver, int ordinal);
    ~CudaCore();
    CudaCore(const CudaCore&) = delete;
    CudaCore& operator=(const CudaCore&) = delete;

    [[nodiscard]] const Driver& driver() const noexcept { return *driver_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< "cuda:0"
    [[nodiscard]] driver::DeviceId id() const noexcept { return id_; }
    [[nodiscard]] driver::ContextHandle context() const noexcept { return context_; }
    [[nodiscard]] CurrentContext current() const { return {*driver_, context_}; }

    /// Throws DriverError unless `result` is success. An error that loses the context is kept: the
    /// calls after it fail with the same number, and their messages tell where it showed first.
    void check(driver::Result result, std::string_view call, std::string_view purpose) const;

    /// Loads all kernels, once and before anything else uses the device; `image` is what the
    /// compiler made of them. A driver that loads lazily does so here, not in the first step.
    void load_kernels(const void* image);
    /// No call of the driver. Throws std::logic_error where no such kernel was loaded.
    [[nodiscard]] driver::FunctionHandle kernel(const char* name) const;

    /// Events are used again; `flags` tells those that take the time from plain ones.
    [[nodiscard]] driver::EventHandle take_event(unsigned flags);
    void return_event(driver::EventHandle event, unsigned flags) noexcept;

    /// Host memory that is page-locked, piece by piece: for all devices of the process, whichever
    /// did it.
    static void add_registration(const std::byte* data, std::size_t bytes);
    static void remove_registration(const std::byte* data) noexcept;
    /// How many of the `bytes` at `data`, at least 1, lie on one side of the edges of registered
    /// pieces: one copy must not cross them.
    [[nodiscard]] static std::size_t bytes_to_edge(const std::byte* data, std::size_t bytes);

    DeviceCounters counters;

  private:
    void find_kernels();

    const std::shared_ptr<const Driver> driver_;
    const std::string name_;
    driver::DeviceId id_ = 0;
    driver::ContextHandle context_ = nullptr;
    driver::ModuleHandle module_ = nullptr;
    std::map<std::string, driver::FunctionHandle, std::less<>> kernels_;

    mutable std::mutex mutex_;  ///< guards what follows
    mutable std::string lost_;  ///< the first error that lost the context
    std::vector<driver::EventHandle> timing_events_;
    std::vector<driver::EventHandle> plain_events_;
};

}  // namespace spillway::cuda
