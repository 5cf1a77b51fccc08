// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "cuda/cuda_core.h"

namespace spillway::cuda {

/// The memory of a CUDA device, one allocation of the driver's for each buffer, so that the
/// driver's and the vendor's tools see every use after free and past the end. A cap holds for their
/// sum, in whole pages; the driver's own granularity comes on top and is why a cap below the
/// device's free memory is wise. Thread-safe.
class CudaMemory {
  public:
    CudaMemory(std::shared_ptr<CudaCore> core, std::size_t capacity_bytes);
    /// Frees what is left.
    ~CudaMemory();
    CudaMemory(const CudaMemory&) = delete;
    CudaMemory& operator=(const CudaMemory&) = delete;

    /// Aligned to a page. Throws OutOfDeviceMemory; DriverError where the driver fails otherwise.
    [[nodiscard]] std::byte* allocate(std::size_t bytes);
    /// `data` came from allocate(); anything else is ignored.
    void deallocate(std::byte* data) noexcept;

    /// Whether any of these bytes lies in an allocation.
    [[nodiscard]] bool overlaps(const std::byte* data, std::size_t bytes) const;
    /// Whether all of these bytes lie in one allocation that has not been freed.
    [[nodiscard]] bool allocated(const std::byte* data, std::size_t bytes) const;

    [[nodiscard]] std::size_t capacity_bytes() const noexcept { return capacity_bytes_; }
    [[nodiscard]] std::size_t free_bytes() const;
    [[nodiscard]] std::size_t peak_bytes() const;

  private:
    struct Run {
        std::size_t bytes;     ///< in whole pages
        driver::Address base;  ///< what the driver gave; the run begins at the next page
    };

    [[nodiscard]] Run take(std::size_t bytes, std::size_t asked_bytes);
    /// Nothing where the driver has no room.
    [[nodiscard]] driver::Address take_from_driver(std::size_t bytes);

    const std::shared_ptr<CudaCore> core_;
    const std::size_t capacity_bytes_;
    mutable std::mutex mutex_;
    std::map<std::byte*, Run, std::less<>> runs_;  ///< their bytes sum up to used_bytes_
    std::size_t used_bytes_ = 0;
    std::size_t peak_bytes_ = 0;
};

}  // namespace spillway::cuda
