// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "nvme/detail/libaio_calls.h"
#include "nvme/io_backend.h"

namespace spillway::nvme::detail {

/// Linux native asynchronous I/O through libaio, which is loaded at run time: for kernels and
/// containers without io_uring. Needs Linux 4.18 (fdatasync in the background). On a buffered file
/// submit() blocks until the bytes are in the page cache; on a direct one it does not. See
/// io_submit(2).
class LibaioBackend final : public IoBackend {
  public:
    /// Throws std::system_error: ENOENT without the library; EAGAIN, with the limit and what it is
    /// now, where the system's requests (fs.aio-max-nr) are used up even for a depth of 1. Where
    /// only some are left depth() is smaller than asked for.
    explicit LibaioBackend(std::size_t depth, LibaioCalls calls = load_libaio());
    ~LibaioBackend() override;
    LibaioBackend(const LibaioBackend&) = delete;  // the kernel fills its context
    LibaioBackend& operator=(const LibaioBackend&) = delete;

    [[nodiscard]] std::string_view name() const noexcept override { return "libaio"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return depth_; }
    std::size_t submit(std::span<const BackendOperation> operations) override;
    std::size_t wait(std::span<BackendCompletion> completions) override;
    void wake() noexcept override;

  private:
    void set_up();
    std::size_t offer(std::span<const BackendOperation> operations);
    std::size_t reap(std::span<BackendCompletion> completions);
    void sleep_until_something_ends();

    LibaioCalls calls_;
    std::size_t depth_;
    std::size_t in_flight_ = 0;
    aio_context_t context_ = 0;
    int event_ = -1;  ///< counts completions and wakes: one thing to sleep on
    std::atomic<bool> woken_ = false;
    std::deque<BackendCompletion> refused_;  ///< what io_submit itself judged, for the next wait()
    std::vector<iocb> blocks_;
    std::vector<iocb*> pointers_;
    std::vector<io_event> events_;
};

}  // namespace spillway::nvme::detail
