// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <liburing.h>

#include "nvme/io_backend.h"

namespace spillway::nvme {

/// Linux io_uring: one system call, in wait(), submits what was gathered and sleeps until something
/// ends. Memory and files given to use_fixed() are registered with the ring, which needs
/// RLIMIT_MEMLOCK for the memory. Needs kernel 5.6. See J. Axboe, "Efficient IO with io_uring",
/// https://kernel.dk/io_uring.pdf.
class UringBackend final : public IoBackend {
  public:
    /// Throws std::system_error with the kernel's own errno where io_uring is refused or too old.
    explicit UringBackend(std::size_t depth);
    ~UringBackend() override;
    UringBackend(const UringBackend&) = delete;  // the kernel shares its ring
    UringBackend& operator=(const UringBackend&) = delete;

    [[nodiscard]] std::string_view name() const noexcept override { return "io_uring"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return depth_; }
    [[nodiscard]] std::vector<std::string> use_fixed(const FixedResources& fixed) override;
    std::size_t submit(std::span<const BackendOperation> operations) override;
    std::size_t wait(std::span<BackendCompletion> completions) override;
    void wake() noexcept override;

  private:
    struct FixedPiece {
        std::span<std::byte> memory;
        int index = 0;  ///< in the ring's table
    };

    void check_features();
    [[nodiscard]] std::string register_memory(std::span<const std::span<std::byte>> memory);
    [[nodiscard]] std::string register_files(std::span<DirectFile* const> files);
    void prepare(io_uring_sqe* entry, const BackendOperation& operation) const;
    [[nodiscard]] int fixed_piece_of(const BackendOperation& operation) const noexcept;
    void drain() noexcept;
    void sleep_until_something_ends();
    std::size_t reap(std::span<BackendCompletion> completions);

    std::size_t depth_;
    std::size_t in_flight_ = 0;
    int wake_event_ = -1;
    bool wake_armed_ = false;  ///< a poll of wake_event_ is in the ring
    bool woken_ = false;
    io_uring ring_ = {};
    std::vector<FixedPiece> fixed_memory_;          ///< by address; empty: none is registered
    std::vector<std::pair<int, int>> fixed_files_;  ///< descriptor and index, by descriptor
};

}  // namespace spillway::nvme
