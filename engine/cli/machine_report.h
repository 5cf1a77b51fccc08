// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/nearby_library.h"

namespace spillway::engine {

struct NumaNode {
    unsigned number = 0;
    std::uint64_t memory_bytes = 0;
    std::string cpus;  ///< "0-7,16-23"
};

/// What the kernel sends to a drive at once. 0 and "unknown" where it does not say, as of a file
/// system on a network or in memory.
struct DriveQueue {
    std::size_t logical_sector_bytes = 0;
    std::size_t physical_sector_bytes = 0;
    std::size_t largest_request_bytes = 0;
    std::size_t most_segments = 0;  ///< of memory in one request: small pages use one each
    std::string write_cache;        ///< "write back": flushes cost something; "write through"
    std::string polling;            ///< of completions: "yes", or "no" without queues for it
};

/// What a folder's file system and drive are. Texts that could not be learnt are "unknown".
struct FolderReport {
    std::filesystem::path folder;
    std::string file_system;  ///< "ext4"
    std::string source;       ///< "/dev/nvme0n1p1"
    std::string drive;        ///< what drive_kind() says
    std::uint64_t free_bytes = 0;
    std::string direct_io;                   ///< "yes", or why not
    std::size_t memory_alignment_bytes = 0;  ///< of direct I/O; 0 without it
    std::size_t offset_alignment_bytes = 0;
    DriveQueue queue;
};

/// What this machine has for the program, as far as it can be asked.
struct MachineReport {
    std::string cpu;
    std::size_t packages = 0;
    std::size_t cores = 0;
    std::size_t processors = 0;         ///< of the machine
    std::size_t usable_processors = 0;  ///< by this process's affinity
    double cgroup_processors = 0;       ///< what a control group's quota leaves; 0: no quota
    std::vector<std::string> isas;      ///< narrowest first
    std::string isa;                    ///< chosen by "auto"
    std::string blas_kernels;           ///< that OpenBLAS runs
    std::vector<NumaNode> numa_nodes;
    std::uint64_t memory_bytes = 0;
    std::uint64_t available_memory_bytes = 0;
    std::string memory_limited_by;
    std::uint64_t memlock_bytes = 0;  ///< ~0: unlimited
    std::string huge_pages;           ///< the kernel's setting: "always", "madvise", "never"
    std::string io_uring;             ///< "yes", or why not
    std::string io_uring_thread;      ///< requests taken by a kernel's thread: "yes", or why not
    std::string libaio;               ///< "yes", or why not
    std::string aio_requests;         ///< of libaio, system-wide: "0 of 65536 in use"
    std::string io_backend;           ///< what "auto" comes to, and why
    FolderReport folder;
    cuda::CudaReport cuda;
    cuda::NearbyLibrary nccl;
    cuda::NearbyLibrary cufile;
};

/// Asks the kernel, hwloc, the CUDA driver and the folder's file system; makes and drops a file
/// without a name there to learn the limits of direct I/O. Never throws for something that cannot
/// be learnt: the text says so.
[[nodiscard]] MachineReport inspect_machine(const std::filesystem::path& folder);

/// "solid state", "rotating", "virtual, of unknown kind" (a hypervisor's drive, or a file's), or
/// "unknown", by the kernel's folder of a block device or partition below /sys.
[[nodiscard]] std::string drive_kind(const std::filesystem::path& block);

/// Processors' worth of time that the control groups (version 1 or 2) of this process leave it; 0:
/// no quota. `root` is "/" but in tests.
[[nodiscard]] double cgroup_processors(const std::filesystem::path& root = "/");

[[nodiscard]] std::string machine_report_json(const MachineReport& report);
[[nodiscard]] std::vector<std::string> machine_report_lines(const MachineReport& report);

}  // namespace spillway::engine
