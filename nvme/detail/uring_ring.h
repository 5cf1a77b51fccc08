// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <liburing.h>

#include "nvme/io_backend.h"

namespace spillway::nvme::detail {

/// One ring shared with the kernel, and the memory and files registered with it. Used by one thread
/// at a time.
class UringRing {
  public:
    static constexpr std::uint64_t wake_id = std::numeric_limits<std::uint64_t>::max();

    /// `flags`: IORING_SETUP_*; the idle time counts with IORING_SETUP_SQPOLL alone. Throws
    /// std::system_error with the kernel's own errno.
    UringRing(unsigned entries, unsigned flags, unsigned kernel_thread_idle_ms = 0);
    ~UringRing();                          ///< drains first
    UringRing(const UringRing&) = delete;  // the kernel shares it
    UringRing& operator=(const UringRing&) = delete;

    [[nodiscard]] io_uring& raw() noexcept { return ring_; }
    [[nodiscard]] std::size_t in_flight() const noexcept { return in_flight_; }
    /// Gathered and not yet taken by the kernel.
    [[nodiscard]] std::size_t gathered() const noexcept { return io_uring_sq_ready(&ring_); }
    [[nodiscard]] bool has_file(const DirectFile& file) const noexcept {
        return file_index(file.descriptor()) >= 0;
    }

    /// "" or why it could not be done, a sentence. Where a limit forbids all of the memory, as many
    /// of the spans as it allows, from the first on.
    [[nodiscard]] std::string register_memory(std::span<const std::span<std::byte>> memory);
    /// "" or why it could not be done, a sentence.
    [[nodiscard]] std::string register_files(std::span<DirectFile* const> files);

    /// Only gathers: a later submission hands it over. False: there is no room.
    bool gather(const BackendOperation& operation);
    /// Arms a poll of `event` that completes as wake_id; false: there is no room.
    bool gather_wake(int event);
    /// Fills as many as are ready; `woken` is set where the poll was among them. Non-blocking.
    std::size_t reap(std::span<BackendCompletion> completions, bool& woken);

  private:
    struct FixedPiece {
        std::span<std::byte> memory;
        int index = 0;  ///< in the ring's table
    };

    void prepare(io_uring_sqe* entry, const BackendOperation& operation) const;
    [[nodiscard]] int file_index(int descriptor) const noexcept;
    [[nodiscard]] int fixed_piece_of(const BackendOperation& operation) const noexcept;
    void drain() noexcept;

    io_uring ring_ = {};
    std::size_t in_flight_ = 0;
    std::vector<FixedPiece> fixed_memory_;          ///< by address; empty: none is registered
    std::vector<std::pair<int, int>> fixed_files_;  ///< descriptor and index, by descriptor
};

}  // namespace spillway::nvme::detail
