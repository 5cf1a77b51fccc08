// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>

#include <sys/types.h>

namespace spillway::nvme::detail {

/// Tells the process that made it from children forked later, which have a copy, without the system
/// call that asking for the process's number costs each time: a page that the kernel empties in a
/// child (MADV_WIPEONFORK, Linux 4.14), or the number where there is none. Thread-safe.
class ForkMark {
  public:
    ForkMark() noexcept;
    ~ForkMark();
    ForkMark(const ForkMark&) = delete;  // owns its page
    ForkMark& operator=(const ForkMark&) = delete;

    [[nodiscard]] bool is_here() const noexcept;
    /// Of the process that made it.
    [[nodiscard]] pid_t owner() const noexcept { return owner_; }

  private:
    const pid_t owner_;
    const std::atomic<bool>* here_ = nullptr;  ///< false in a child; null: compare numbers
};

}  // namespace spillway::nvme::detail
