// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "cuda/host_mapping.h"

namespace spillway::cuda {

/// The memory of a simulated device: one region of address space that costs host memory only where
/// it is touched, cut in whole pages, first fit, neighbouring free runs joined. Freed memory is
/// filled with `poison`, so that a use after free shows. Thread-safe.
class SimMemory {
  public:
    static constexpr std::byte poison{0xDB};

    /// `device_name` is for messages; `capacity_bytes` is cut to whole pages. Throws
    /// std::system_error where the host has no such address space.
    SimMemory(std::string device_name, std::size_t capacity_bytes);

    /// Throws OutOfDeviceMemory, also where no single free run is long enough. `bytes` is not 0.
    [[nodiscard]] std::byte* allocate(std::size_t bytes);
    /// `data` came from allocate(); anything else is ignored.
    void deallocate(std::byte* data) noexcept;

    /// Whether any of these bytes lies in the region, allocated or not.
    [[nodiscard]] bool overlaps(const std::byte* data, std::size_t bytes) const noexcept;
    /// Whether all of these bytes lie in one allocation that has not been freed.
    [[nodiscard]] bool allocated(const std::byte* data, std::size_t bytes) const;

    [[nodiscard]] std::size_t capacity_bytes() const noexcept { return region_.size_bytes(); }
    [[nodiscard]] std::size_t free_bytes() const;
    [[nodiscard]] std::size_t peak_bytes() const;

  private:
    using Runs = std::map<std::size_t, std::size_t>;  ///< offset to length, both in bytes

    void insert_free(Runs::node_type run) noexcept;

    const std::string device_name_;
    const HostMapping region_;
    mutable std::mutex mutex_;
    Runs free_;       ///< no two of them touch
    Runs allocated_;  ///< lengths sum up to used_bytes_
    std::size_t used_bytes_ = 0;
    std::size_t peak_bytes_ = 0;
};

}  // namespace spillway::cuda
