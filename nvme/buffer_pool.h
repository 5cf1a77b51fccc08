// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nvme/huge_page_arena.h"
#include "nvme/io_request.h"

namespace spillway::nvme {

/// The right to use one buffer of a BufferPool, which gets it back when the lease ends. Move-only;
/// a moved-from lease is empty. Declare it before the IoTicket of what moves through it: the ticket
/// then goes first, and waits. Keeps the pool's memory alive, also beyond the pool.
class BufferLease {
  public:
    BufferLease() noexcept = default;  ///< empty
    ~BufferLease();
    BufferLease(BufferLease&& other) noexcept;
    BufferLease& operator=(BufferLease&& other) noexcept;
    BufferLease(const BufferLease&) = delete;  // one owner
    BufferLease& operator=(const BufferLease&) = delete;

    explicit operator bool() const noexcept { return !bytes_.empty(); }
    /// Exactly as long as asked of the pool, on a page of its own; what was in it last is in it
    /// still.
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

  private:
    friend class BufferPool;
    struct Shared;
    BufferLease(std::shared_ptr<Shared> shared, std::span<std::byte> bytes) noexcept;

    std::shared_ptr<Shared> shared_;
    std::span<std::byte> bytes_;
};

/// Buffers of one size for direct I/O, side by side on huge pages, leased and returned by any
/// thread. All memory is taken at the start. Who asks for more than there is waits (back-pressure):
/// demand before prefetch, each in order of asking. A forked child inherits none of the memory
/// (copy-on-write would part the parent's pages from those that the kernel has registered), and its
/// copy of the pool leases nothing.
class BufferPool {
  public:
    struct Options {
        std::size_t buffer_bytes = 0;  ///< of each; any size, each starts on a page
        std::size_t buffers = 0;
        std::size_t kept_for_demand = 0;  ///< so many are never leased to prefetches
        PageKind best_pages = PageKind::reserved_huge;
    };

    /// Throws std::invalid_argument on sizes that make no sense, std::system_error where the memory
    /// cannot be had.
    explicit BufferPool(const Options& options);
    ~BufferPool();  ///< closes
    BufferPool(BufferPool&&) = delete;
    BufferPool& operator=(BufferPool&&) = delete;
    BufferPool(const BufferPool&) = delete;  // waiters point at it
    BufferPool& operator=(const BufferPool&) = delete;

    /// Waits for a buffer; empty only when the pool is closed. Who holds leases and waits for more
    /// must be sure that others will return theirs. Throws std::system_error in a forked child.
    [[nodiscard]] BufferLease acquire(ReadPriority priority = ReadPriority::demand);
    /// Empty where acquire() would wait.
    [[nodiscard]] BufferLease try_acquire(ReadPriority priority = ReadPriority::demand);
    /// Ends every wait with an empty lease, now and later; leases stay valid.
    void close() noexcept;

    [[nodiscard]] std::size_t buffers() const noexcept;
    [[nodiscard]] std::size_t free_buffers() const;
    /// What the memory really takes, for a ledger.
    [[nodiscard]] std::size_t size_bytes() const noexcept;
    /// All of it, in runs of whole buffers short enough to be registered one by one: for
    /// FixedResources::memory, on which operations of leased buffers then never meet an edge.
    [[nodiscard]] std::vector<std::span<std::byte>> pieces() const;
    [[nodiscard]] PageKind pages() const noexcept;
    /// Why the buffers lie on other pages than the best asked for; "" if they do not.
    [[nodiscard]] const std::string& note() const noexcept;

  private:
    std::shared_ptr<BufferLease::Shared> shared_;
};

}  // namespace spillway::nvme
