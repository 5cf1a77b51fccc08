// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/device.h"

namespace spillway::cuda {

/// What is left free on a device whose capacity was not given: the context, the driver's own
/// granularity, and a display.
inline constexpr std::size_t cuda_margin_bytes = std::size_t{512} << 20;

struct CudaOptions {
    int ordinal = 0;                 ///< as the driver counts, CUDA_VISIBLE_DEVICES respected
    std::size_t capacity_bytes = 0;  ///< 0: what is free now, less cuda_margin_bytes
    /// The driver, by the rules of dlopen; empty for the system's.
    std::string driver_library;
    /// Compiled kernels; empty for those that this build has.
    std::span<const std::byte> kernels;
    /// Host memory is page-locked in pieces of this, a multiple of 4096: some drivers refuse one
    /// registration of 512 GiB and more, and a failure is found early.
    std::size_t registration_piece_bytes = std::size_t{1} << 30;
};

/// A GPU through its driver: MemoryKind::device. Its buffers are allocations of the driver, its
/// streams the driver's. Throws std::invalid_argument naming the device where there is no driver or
/// one too old for the kernels, no such device or one older than Ampere, this build has no kernels,
/// or a capacity is asked for that is not free.
[[nodiscard]] std::unique_ptr<Device> make_cuda_device(const CudaOptions& options);

/// A GPU as its driver describes it.
struct CudaDeviceReport {
    std::string name;
    std::uint64_t memory_bytes = 0;
    int major = 0, minor = 0;  ///< compute capability
    std::string pci_address;   ///< "0000:65:00.0"
    int numa_node = -1;        ///< of that address; -1 where the machine does not say
    std::string refusal;       ///< why it cannot be used; empty where it can
};

/// What `info` says of CUDA.
struct CudaReport {
    std::string refusal;     ///< why there is no device; empty where there is one
    int driver_version = 0;  ///< 13000 for 13.0; 0 without a driver
    std::string kernels;     ///< "sm_80 sm_90 compute_90", or why this build has none
    std::vector<CudaDeviceReport> devices;
};

/// Looks without making a context. Never throws for what it finds. `driver_library` as in
/// CudaOptions.
[[nodiscard]] CudaReport inspect_cuda(const std::string& driver_library = {});

/// Why there is no `cuda:ordinal`, by that report; empty where there is one.
[[nodiscard]] std::string cuda_refusal(const CudaReport& report, int ordinal);

}  // namespace spillway::cuda
