// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "nvme/buffer_pool.h"
#include "nvme/direct_file.h"
#include "nvme/huge_page_arena.h"
#include "nvme/io_queue.h"
#include "nvme/storage_bench.h"

namespace spillway::nvme::detail {

/// Random bytes that go round: what belongs at each offset of a benchmark's file, at hand in
/// memory, so that a write needs no preparation.
class BenchPattern {
  public:
    /// Blocks of up to `longest_block_bytes` are to be had at every offset.
    explicit BenchPattern(std::size_t longest_block_bytes);
    [[nodiscard]] std::span<std::byte> at(std::uint64_t offset_bytes, std::size_t bytes) const {
        return arena_.bytes().subspan(offset_bytes % period_bytes, bytes);
    }

    [[nodiscard]] std::span<std::byte> memory() const { return arena_.bytes(); }

  private:
    static constexpr std::size_t period_bytes = std::size_t{16} << 20;
    HugePageArena arena_;
};

/// One row as one drive is to run it.
struct BenchRun {
    StorageTraffic traffic = StorageTraffic::read;
    BackendKind backend = BackendKind::automatic;
    std::size_t block_bytes = 0;
    std::size_t depth = 0;
    double time_limit_s = 0;
};

/// What came of it. `windows` are the bytes completed in each eighth of the time limit.
struct BenchCount {
    static constexpr std::size_t window_count = 8;
    std::uint64_t moved_bytes = 0;
    double wall_s = 0;
    std::array<std::uint64_t, window_count> windows = {};
    std::vector<float> latencies_us;
    std::string backend;
    std::vector<std::string> notes;
};

/// A nameless file in one folder and the traffic on it. Used by one thread at a time.
class BenchDrive {
  public:
    BenchDrive(const std::filesystem::path& folder, std::uint64_t file_bytes,
               const BenchPattern& pattern, const std::function<bool()>& stop);

    /// Writes the whole file, then flushes.
    void fill(BackendKind backend);
    [[nodiscard]] BenchCount run(const BenchRun& run);
    /// Reads the whole file and compares; returns the bytes compared.
    [[nodiscard]] std::uint64_t verify(BackendKind backend);
    [[nodiscard]] StorageBenchDrive describe() const;

  private:
    using Clock = std::chrono::steady_clock;

    /// An operation under way and, of a read, where it goes.
    struct Flight {
        BufferLease into;
        IoTicket ticket;
    };

    [[nodiscard]] Flight begin(const BenchRun& run, std::uint64_t number, BufferPool& buffers,
                               IoQueue& queue);
    void drive(const BenchRun& run, BufferPool& buffers, IoQueue& queue, BenchCount& count);

    std::filesystem::path folder_;
    std::uint64_t file_bytes_;
    const BenchPattern& pattern_;
    const std::function<bool()>& stop_;
    DirectFile file_;
};

}  // namespace spillway::nvme::detail
