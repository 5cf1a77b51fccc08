// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>

namespace spillway::cuda {

/// A library of the CUDA world that may or may not be on this machine.
struct NearbyLibrary {
    std::string version;  ///< "2.28.9"; "unknown" where it does not tell; empty without it
    std::string refusal;  ///< why it cannot be used; empty where it can
};

/// NCCL, by the rules of dlopen. Never throws for what it finds.
[[nodiscard]] NearbyLibrary inspect_nccl(const std::string& library = "libnccl.so.2");

/// cuFile (GPUDirect Storage). Without nvidia-fs in the kernel, of which `kernel_module` tells, it
/// works but copies through host memory; then that is the refusal.
[[nodiscard]] NearbyLibrary inspect_cufile(
    const std::string& library = "libcufile.so.0",
    const std::string& kernel_module = "/proc/driver/nvidia-fs/version");

}  // namespace spillway::cuda
