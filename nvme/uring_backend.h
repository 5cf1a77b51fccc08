// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include <liburing.h>

#include "nvme/io_backend.h"

namespace spillway::nvme {

/// Linux io_uring: one system call submits a batch, another sleeps until something ends. Needs
/// kernel 5.6. See J. Axboe, "Efficient IO with io_uring", https://kernel.dk/io_uring.pdf.
class UringBackend final : public IoBackend {
  public:
    /// Throws std::system_error with the kernel's own errno where io_uring is refused or too old.
    explicit UringBackend(std::size_t depth);
    ~UringBackend() override;
    UringBackend(const UringBackend&) = delete;  // the kernel shares its ring
    UringBackend& operator=(const UringBackend&) = delete;

    [[nodiscard]] std::string_view name() const noexcept override { return "io_uring"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return depth_; }
    std::size_t submit(std::span<const BackendOperation> operations) override;
    std::size_t wait(std::span<BackendCompletion> completions) override;
    void wake() noexcept override;

  private:
    void check_features();
    void drain() noexcept;
    void sleep_until_something_ends();
    std::size_t reap(std::span<BackendCompletion> completions);

    std::size_t depth_;
    std::size_t in_flight_ = 0;
    int wake_event_ = -1;
    bool wake_armed_ = false;  ///< a poll of wake_event_ is in the ring
    bool woken_ = false;
    io_uring ring_ = {};
};

}  // namespace spillway::nvme
