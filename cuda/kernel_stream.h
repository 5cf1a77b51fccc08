// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "cuda/driver_api.h"

namespace spillway::cuda {

/// How many blocks of how many threads, with how much shared memory each beyond what the kernel
/// declares.
struct LaunchShape {
    unsigned blocks = 1;
    unsigned threads = 1;
    unsigned shared_bytes = 0;
};

/// Device memory that a kernel uses.
struct MemoryUse {
    enum class Access { reads, writes };  ///< one that writes may read as well
    Access access = Access::reads;
    const char* parameter = "";  ///< what the kernel calls it
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
};

/// Where a device's own kernels go: the stream of a device that computes by them. Calls enqueue and
/// return, in the order of the stream's other calls. Thread-safe.
class KernelStream {
  public:
    virtual ~KernelStream() = default;

    /// `parameters` is the kernel's one parameter, read before the call returns. Throws
    /// std::invalid_argument, before anything is queued, where memory named in `uses` is not, or is
    /// no longer, allocated on this device; what `uses` leaves out a kernel may not touch.
    virtual void launch_kernel(const char* kernel, const LaunchShape& shape, void* parameters,
                               std::span<const MemoryUse> uses) = 0;

    /// Calls `call` at once, with the device's context current and the driver's stream, so that
    /// another library can queue work of its own there; unless the stream is known to have failed.
    /// `uses` as for kernels. `call` may not call this stream.
    virtual void call_library(const char* name, std::span<const MemoryUse> uses,
                              const std::function<void(driver::StreamHandle)>& call) = 0;
};

/// Collects what a kernel's parameters say of memory.
class MemoryUses {
  public:
    template <typename T>
    void reads(const char* parameter, const T*& data, std::size_t elements) {
        add(MemoryUse::Access::reads, parameter, data, elements * sizeof(T));
    }
    template <typename T>
    void writes(const char* parameter, T*& data, std::size_t elements) {
        add(MemoryUse::Access::writes, parameter, data, elements * sizeof(T));
    }
    [[nodiscard]] std::span<const MemoryUse> all() const noexcept { return uses_; }

  private:
    void add(MemoryUse::Access access, const char* parameter, const void* data, std::size_t bytes) {
        if (data != nullptr && bytes != 0)
            uses_.push_back({access, parameter, static_cast<const std::byte*>(data), bytes});
    }
    std::vector<MemoryUse> uses_;
};

/// Launches the kernel that `Parameters` belongs to: Parameters::kernel is its name, and
/// for_each_memory() hands every pointer among them to a visitor.
template <typename Parameters>
void launch(KernelStream& stream, const LaunchShape& shape, Parameters parameters) {
    MemoryUses uses;
    parameters.for_each_memory(uses);
    stream.launch_kernel(Parameters::kernel, shape, &parameters, uses.all());
}

}  // namespace spillway::cuda
