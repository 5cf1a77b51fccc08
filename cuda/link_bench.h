// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "cuda/device.h"

namespace spillway::cuda {

/// Which way the bytes go, both meaning at once.
enum class LinkTraffic { host_to_device, device_to_host, both_ways };
[[nodiscard]] std::string_view name_of(LinkTraffic traffic) noexcept;

enum class HostPages { pageable, locked };
[[nodiscard]] std::string_view name_of(HostPages pages) noexcept;

struct LinkBenchOptions {
    std::size_t bytes = std::size_t{256} << 20;  ///< each way and pass
    std::vector<std::size_t> blocks{std::size_t{64} << 10, std::size_t{1} << 20,
                                    std::size_t{16} << 20};  ///< bytes of one copy
    std::uint32_t passes = 7;                                ///< timed; one more warms up
    std::function<bool()> stop = [] { return false; };       ///< asked between passes
};

/// Bytes a second over passes that each move all bytes; both ways count together.
struct LinkBenchRow {
    LinkTraffic traffic{};
    HostPages pages{};
    std::size_t block_bytes = 0;
    double bytes_per_s = 0;  ///< the median
    double least_bytes_per_s = 0;
    double most_bytes_per_s = 0;
};

struct LinkBenchResult {
    std::vector<LinkBenchRow> rows;
    std::size_t verified_bytes = 0;  ///< that came back as they went
    bool interrupted = false;        ///< rows may be missing
};

/// Device memory that measure_link() takes.
[[nodiscard]] std::size_t link_bench_device_bytes(const LinkBenchOptions& options) noexcept;

/// Copies between page-locked memory and a device with memory of its own, and, where locking is
/// what makes copies fast, between pageable memory too. Throws std::invalid_argument for options
/// that measure nothing or a device that computes in host memory, OutOfDeviceMemory, and
/// std::runtime_error naming the byte that came back wrong.
[[nodiscard]] LinkBenchResult measure_link(Device& device, const LinkBenchOptions& options);

}  // namespace spillway::cuda
