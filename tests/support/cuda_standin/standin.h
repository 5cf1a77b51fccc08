// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// A library that looks like the CUDA driver, for machines without one, and is stricter than the
/// hardware. Device memory cannot be touched by the host, addresses of freed memory stay invalid,
/// streams are asynchronous threads, and every use of memory is checked against every other: two
/// that conflict must be ordered by a stream, an event or the host. Kernels are the real sources,
/// compiled for the host (emulator.h). This is its other side, through which tests set it up and
/// ask it what it saw; they link it, and the code under test finds the same library by its path. A
/// whole program that is run with it writes what it saw to the file that the environment's
/// SPILLWAY_STANDIN_REPORT names, a "name number" or "violation words" a line; its GPUs are of the
/// compute capability that begins with SPILLWAY_STANDIN_CAPABILITY, where that is set, and as many
/// as SPILLWAY_STANDIN_DEVICES says. SPILLWAY_STANDIN_FAULT, "1 copy 40 700", is fail_in_stream()
/// of a device.
namespace spillway::standin {

struct Settings {
    int devices = 1;
    std::size_t device_memory_bytes = std::size_t{1} << 30;
    int driver_version = 99000;  ///< newer than any compiler of the kernels
    int capability_major = 9;
    std::size_t page_lock_limit_bytes = ~std::size_t{0};
    double max_delay_s = 0;  ///< before each operation of a stream
    std::uint64_t seed = 0;  ///< of the delays
    enum class PeerAccess { possible, none };
    PeerAccess peer_access = PeerAccess::possible;
    enum class Pageable { allowed, violation };
    Pageable pageable = Pageable::allowed;  ///< copies from and to host memory not page-locked
};

/// Back to the beginning. Streams, events and memory left over from before are forgotten.
void reset(const Settings& settings);

/// The k-th call (from 1) of `function` from now on, named as in the driver without a version's
/// suffix, returns `result` and does nothing.
void fail_call(const std::string& function, int k, int result);
/// The k-th operation from now on that a stream executes of this kind, "copy" or the name of a
/// kernel, fails as hardware does: later calls find the context lost with `result`. One of NCCL's,
/// "ncclAllReduce", leaves `result` with its communicator instead and never ends by itself.
/// `device`: of the stream; -1: whichever.
void fail_in_stream(const std::string& operation, int k, int result, int device = -1);

/// Every breach of the rules so far, in words.
[[nodiscard]] std::vector<std::string> violations();

/// The host itself touches memory that copies may be using.
void host_reads(const void* data, std::size_t bytes);
void host_writes(const void* data, std::size_t bytes);

/// What exists, and what has been done.
struct Counts {
    std::size_t allocations = 0, allocated_bytes = 0;
    std::size_t streams = 0, events = 0, contexts = 0, modules = 0;
    std::size_t registrations = 0, page_locked_bytes = 0;
    std::size_t copies = 0, pageable_copies = 0, kernels = 0;
    std::size_t contexts_made = 0;
    std::size_t peer_copies = 0, peers = 0;  ///< from device to device; pairs that are direct
    std::size_t spinning_waits = 0;          ///< a processor's time was taken by a wait
};
[[nodiscard]] Counts counts();

/// What cuModuleLoadDataEx takes for compiled kernels: the emulated ones.
[[nodiscard]] std::span<const std::byte> emulated_kernels();
[[nodiscard]] std::vector<std::string> kernel_names();

}  // namespace spillway::standin
