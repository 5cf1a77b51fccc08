// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "cpu_optim/isa.h"
#include "cuda/device.h"
#include "offload/io_options.h"
#include "offload/windows.h"

namespace spillway::offload {

struct ScratchWeightsOptions {
    std::vector<std::filesystem::path> nvme;  ///< a folder on each drive, at least one
    std::uint64_t elements = 0;               ///< rounded up to whole parts of 2^20
    std::size_t chunk_bytes = 0;              ///< as PlanRequest::chunk_bytes, not 0
    Windows windows = {};                     ///< of which the weights' is used
    std::size_t threads = 1;                  ///< that make them
    cpu_optim::Isa isa = cpu_optim::Isa::scalar;
    IoOptions io = {};
};

/// Weights on drives, in files without a name, that are brought to a device pass after pass as a
/// run's are: to measure how fast that goes. All of them lie on the drives; on the device there is
/// room for two parts of them (needed_device_bytes()).
class ScratchWeights {
  public:
    /// What a plan for them takes of host memory, a host device's included; less is allocated.
    /// Throws std::invalid_argument as make_plan(), or if they are too few to pass through.
    [[nodiscard]] static std::size_t needed_host_bytes(const ScratchWeightsOptions& options,
                                                       cuda::MemoryKind device);
    /// Of the device.
    [[nodiscard]] static std::size_t needed_device_bytes() noexcept;

    /// Writes them. Device and stream must outlive this. Throws PlanRefused where a drive has no
    /// room, std::system_error on I/O errors, std::invalid_argument as above.
    ScratchWeights(const ScratchWeightsOptions& options, cuda::Device& device,
                   cuda::Stream& compute);
    ~ScratchWeights();
    ScratchWeights(const ScratchWeights&) = delete;
    ScratchWeights& operator=(const ScratchWeights&) = delete;

    /// Reads every weight, once, and returns when all have been on the device.
    void pass();

    [[nodiscard]] std::uint64_t nvme_read_bytes() const;
    [[nodiscard]] std::size_t host_bytes() const noexcept;  ///< allocated, by the ledger

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::offload
