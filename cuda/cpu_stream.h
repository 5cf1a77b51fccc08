// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "cuda/device.h"
#include "cuda/device_counters.h"
#include "cuda/row_copy.h"

namespace spillway::cuda {

/// A stream that executes each call at once, on the calling thread.
class CpuStream final : public Stream {
  public:
    CpuStream(std::string_view name, std::shared_ptr<DeviceCounters> counters);

    void copy_to_device(std::byte* device_to, const std::byte* host_from,
                        std::size_t bytes) override;
    void copy_to_host(std::byte* host_to, const std::byte* device_from, std::size_t bytes) override;
    void copy_rows_to_device(std::byte* device_to, std::size_t to_pitch, const std::byte* host_from,
                             std::size_t from_pitch, std::size_t row_bytes,
                             std::size_t rows) override;
    void launch(const char* name, std::function<void()> kernel) override;
    Event record() override;
    void wait(const Event& event) override;
    void synchronize() override;

  private:
    class Turn;
    void copy(std::string_view call, CopyDirection direction, const RowCopy& copy);

    const std::string name_;
    const std::shared_ptr<DeviceCounters> counters_;
    std::mutex
        mutex_;  ///< held while an operation executes: threads that share the stream take turns
    std::atomic<std::thread::id> owner_;  ///< of mutex_
    std::exception_ptr error_;            ///< guarded by mutex_
};

}  // namespace spillway::cuda
