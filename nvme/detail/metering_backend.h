// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "nvme/forwarding_backend.h"

namespace spillway::nvme::detail {

/// Passes everything on to another backend and notes how long each read and write took from
/// submission to completion. Ids must be below depth(), as those of an IoQueue are.
class MeteringBackend final : public ForwardingBackend {
  public:
    /// `latencies_us` is added to on the queue's thread: read it when the queue is gone.
    MeteringBackend(std::unique_ptr<IoBackend> inner,
                    std::shared_ptr<std::vector<float>> latencies_us);

    std::size_t submit(std::span<const BackendOperation> operations) override;
    std::size_t wait(std::span<BackendCompletion> completions) override;

  private:
    using Clock = std::chrono::steady_clock;
    struct Flight {
        Clock::time_point began;
        bool is_transfer = false;
    };

    std::shared_ptr<std::vector<float>> latencies_us_;
    std::vector<Flight> flights_;  ///< by id
};

}  // namespace spillway::nvme::detail
