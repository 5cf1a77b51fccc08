// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nvme/completion_signal.h"
#include "nvme/io_backend.h"
#include "nvme/io_request.h"

namespace spillway::nvme {

class IoQueue;

/// The right to learn how one request ended. Move-only. A ticket that is destroyed unwaited waits
/// first: memory never outlives its request.
class IoTicket {
  public:
    IoTicket() noexcept = default;  ///< empty: done, successful, 0 bytes
    ~IoTicket();
    IoTicket(IoTicket&&) noexcept;
    IoTicket& operator=(IoTicket&&) noexcept;
    IoTicket(const IoTicket&) = delete;
    IoTicket& operator=(const IoTicket&) = delete;

    [[nodiscard]] bool done() const noexcept;
    /// Blocks until the request has ended; may be called again and gives the same result.
    IoResult wait();

  private:
    friend class IoQueue;
    struct State;
    explicit IoTicket(std::shared_ptr<State> state) noexcept;
    std::shared_ptr<State> state_;
};

/// Counters since construction; a consistent snapshot. In a forked child all are 0.
struct IoStatistics {
    std::uint64_t read_bytes = 0;
    std::uint64_t written_bytes = 0;
    std::uint64_t requests = 0;
    std::uint64_t flushes = 0;
    double read_busy_s = 0;   ///< time with at least one read in flight
    double write_busy_s = 0;  ///< time with at least one write in flight
};

/// A request that has not ended.
struct PendingIo {
    IoOperation operation = IoOperation::flush;
    std::filesystem::path path;
    std::uint64_t offset_bytes = 0;
    std::size_t length_bytes = 0;
    double age_s = 0;  ///< since it was submitted

    /// "read of 4096 bytes at offset 0 of FILE, pending for 12.3 s"
    [[nodiscard]] std::string text() const;
};

/// Splits requests into operations of at most `max_operation_bytes`, keeps at most `depth` of them
/// in flight, finishes short transfers at an aligned point, checks every result and retries EINTR
/// and EAGAIN. 0 bytes from a write, or end of file inside a read, is an error. A request that
/// breaks the file's request alignment is refused (EINVAL, with the misaligned value) before the
/// kernel sees it, on every machine alike; so is one on GPU memory (EOPNOTSUPP) where the backend
/// moves none. submit() may be called from any thread and never blocks on the
/// drive; requests beyond `depth` wait inside. Operations start in this order: demand reads,
/// prefetch reads, then writes and flushes, each kind in order of submission; but a kind that could
/// start and was passed over four times has the next turn, so none starves. What is in flight is
/// not called back: give writes a `write_depth` below `depth` where a demand read must never wait
/// for one. A process that forked must not use the
/// parent's queue: submit() refuses then. The destructor waits for everything in flight.
class IoQueue {
  public:
    struct Options {
        std::size_t depth = 32;
        std::size_t max_operation_bytes = std::size_t{1} << 20;
        std::size_t read_depth = 0;   ///< most reads in flight; 0: `depth`
        std::size_t write_depth = 0;  ///< most writes and flushes in flight; 0: `depth`
        /// Memory and files that requests will mostly use, introduced to the kernel once where the
        /// backend and the limits allow it (see notes()), which spares work per request. Both must
        /// stay as they are until the queue is gone. Other memory and files work all the same.
        FixedResources fixed = {};
        /// Each request that has been open for this long (waiting inside counts) is reported once
        /// to `on_overdue`, with whatever else is; 0: none is. That is all that happens: the
        /// request goes on, since its memory is the kernel's until it has ended.
        double deadline_s = 0;
        /// Runs on a thread of the queue; must not throw, nor destroy the queue or wait for it.
        std::function<void(std::span<const PendingIo>)> on_overdue = {};
        /// Notified after each request that ends on a thread of the queue; must outlive it.
        CompletionSignal* ended = nullptr;
    };

    IoQueue(std::unique_ptr<IoBackend> backend, Options options);
    ~IoQueue();
    IoQueue(const IoQueue&) = delete;  // requests in flight point at it
    IoQueue& operator=(const IoQueue&) = delete;

    [[nodiscard]] IoTicket submit(const IoRequest& request);
    [[nodiscard]] IoStatistics statistics() const;
    [[nodiscard]] std::string_view backend_name() const noexcept;
    /// What has been submitted and has not ended, oldest first: which file a drive that does not
    /// answer holds up, and since when. Works while the drive is hung. From any thread; in a forked
    /// child nothing is.
    [[nodiscard]] std::vector<PendingIo> pending() const;
    /// What the machine did not allow and the queue does without, a sentence each, for people.
    [[nodiscard]] const std::vector<std::string>& notes() const noexcept;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::nvme
