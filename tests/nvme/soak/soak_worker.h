// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "nvme/buffer_pool.h"
#include "nvme/direct_file.h"
#include "nvme/io_queue.h"
#include "tests/nvme/soak/soak_model.h"

namespace spillway::nvme::testing {

/// What requests came to, as their tickets told; the queue's own counters must agree.
struct SoakCounts {
    std::uint64_t requests = 0;  ///< that were not refused and moved or flushed something
    std::uint64_t read_bytes = 0;
    std::uint64_t written_bytes = 0;
    std::uint64_t flushes = 0;
    std::uint64_t failures = 0;
    std::uint64_t refusals = 0;

    SoakCounts& operator+=(const SoakCounts& other) noexcept;
};

/// One thread's random requests on its own part of the file, several in flight, in buffers that it
/// leases from a pool shared with others, each checked against the model when it ends. Keeps its
/// model from queue to queue.
class SoakWorker {
  public:
    static constexpr std::size_t slots = 12;
    static constexpr std::size_t most_bytes = std::size_t{512} << 10;
    static constexpr std::size_t guard_bytes = 4096;
    static constexpr std::size_t buffer_bytes = most_bytes + 2 * guard_bytes;

    /// `buffers`: of buffer_bytes each.
    SoakWorker(SoakModel model, BufferPool& buffers, std::uint64_t seed);

    /// Until `stop` or a failed flush of the file, after which it must be opened anew; nothing is
    /// in flight afterwards. Throws std::runtime_error where anything is lost, doubled or damaged.
    SoakCounts run(IoQueue& queue, DirectFile& file, const std::function<bool()>& stop);

    /// Writes version 0 of all its units.
    void initialise(IoQueue& queue, DirectFile& file);
    /// Reads all its units and checks them; the queue must be free of faults.
    void verify(IoQueue& queue, DirectFile& file);

  private:
    struct Slot {
        BufferLease memory;
        IoTicket ticket;
        IoOperation operation = IoOperation::flush;
        UnitRange range;
        std::uint64_t version = 0;
        bool is_busy = false;
    };

    [[nodiscard]] BufferLease lease();
    [[nodiscard]] std::optional<UnitRange> free_range(IoOperation operation);
    void begin(std::size_t slot, IoQueue& queue, DirectFile& file);
    void begin_refused(IoQueue& queue, DirectFile& file, std::size_t slot);
    void end(std::size_t slot);

    SoakModel model_;
    BufferPool* buffers_;
    std::mt19937_64 random_;
    std::vector<Slot> slots_;
    SoakCounts counts_;
};

}  // namespace spillway::nvme::testing
