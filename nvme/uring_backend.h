// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nvme/io_backend.h"
#include "nvme/uring_options.h"

namespace spillway::nvme {

namespace detail {
class UringRing;
}

/// Linux io_uring: one system call, in wait(), submits what was gathered and sleeps until something
/// ends. Memory and files given to use_fixed() are registered with the ring, which needs
/// RLIMIT_MEMLOCK for the memory. Needs kernel 5.6. See J. Axboe, "Efficient IO with io_uring",
/// https://kernel.dk/io_uring.pdf.
class UringBackend final : public IoBackend {
  public:
    /// Throws std::system_error with the kernel's own errno where io_uring is refused or too old.
    explicit UringBackend(std::size_t depth, UringOptions options = {});
    ~UringBackend() override;
    UringBackend(const UringBackend&) = delete;  // the kernel shares its rings
    UringBackend& operator=(const UringBackend&) = delete;

    [[nodiscard]] std::string_view name() const noexcept override { return "io_uring"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return depth_; }
    /// Also says which of the options given were refused.
    [[nodiscard]] std::vector<std::string> use_fixed(const FixedResources& fixed) override;
    std::size_t submit(std::span<const BackendOperation> operations) override;
    std::size_t wait(std::span<BackendCompletion> completions) override;
    void wake() noexcept override;

  private:
    void make_rings();
    void check_features();
    void make_polled_ring(const FixedResources& fixed);
    [[nodiscard]] detail::UringRing& ring_for(const BackendOperation& operation) noexcept;
    void arm_wake();
    void sleep_until_something_ends();
    void look_once();
    std::size_t reap(std::span<BackendCompletion> completions);

    std::size_t depth_;
    UringOptions options_;
    std::vector<std::string> notes_;  ///< of options that were refused
    int wake_event_ = -1;
    bool wake_armed_ = false;  ///< a poll of wake_event_ is in the ring
    bool woken_ = false;
    std::unique_ptr<detail::UringRing> ring_;
    /// For transfers of registered direct files; a polled ring takes neither flushes nor a wake.
    std::unique_ptr<detail::UringRing> polled_;
    bool polling_refused_ = false;  ///< by the drive, after all
};

}  // namespace spillway::nvme
