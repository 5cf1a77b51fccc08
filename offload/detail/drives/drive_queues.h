// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nvme/completion_signal.h"
#include "nvme/io_queue.h"
#include "offload/io_options.h"
#include "offload/step_trace.h"

namespace spillway::offload::detail {

/// One queue a drive, so that a slow one holds up none of the others. At least one: a run's commits
/// go through the first. Demand reads overtake reads ahead, and writes never fill a queue: somebody
/// may be waiting for a read.
class DriveQueues {
  public:
    /// Throws std::system_error where a demanded backend does not work here. `staging`, which must
    /// outlive this, is introduced to the kernel once, so that it need not be with each operation;
    /// where it cannot be, notes() say why. With a trace, which must outlive this too, each drive's
    /// operations are recorded in it.
    DriveQueues(std::size_t drives, const IoOptions& options,
                const std::vector<std::span<std::byte>>& staging = {}, StepTrace* trace = nullptr);

    [[nodiscard]] std::size_t size() const noexcept { return queues_.size(); }
    [[nodiscard]] nvme::IoQueue& operator[](std::size_t drive) const noexcept {
        return *queues_[drive];
    }
    [[nodiscard]] nvme::IoQueue& front() const noexcept { return *queues_.front(); }
    /// Some request ended, on any of the drives.
    [[nodiscard]] const nvme::CompletionSignal& ended() const noexcept { return *ended_; }
    [[nodiscard]] nvme::IoStatistics sum() const;
    /// What the drives' backends do without and why, a sentence each.
    [[nodiscard]] std::vector<std::string> notes() const;

  private:
    std::unique_ptr<nvme::CompletionSignal> ended_ = std::make_unique<nvme::CompletionSignal>();
    std::vector<std::unique_ptr<nvme::IoQueue>> queues_;
};

}  // namespace spillway::offload::detail
