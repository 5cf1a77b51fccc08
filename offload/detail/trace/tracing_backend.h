// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nvme/forwarding_backend.h"
#include "offload/step_trace.h"

namespace spillway::offload::detail {

/// Passes everything on to another backend and records each operation from submission to
/// completion, reads on one lane, writes and flushes on another. Ids must be below depth(), as
/// those of an IoQueue are.
class TracingBackend final : public nvme::ForwardingBackend {
  public:
    /// Adds the lanes "drive N reads" and "drive N writes". `trace` must outlive it.
    TracingBackend(std::unique_ptr<nvme::IoBackend> inner, StepTrace& trace, std::size_t drive);

    std::size_t submit(std::span<const nvme::BackendOperation> operations) override;
    std::size_t wait(std::span<nvme::BackendCompletion> completions) override;

  private:
    /// Operations of one kind: the lowest rows are used first, so that few show.
    struct Direction {
        std::string name;
        std::size_t lane = 0;
        std::vector<TraceRow> rows;
        std::vector<bool> taken;
    };
    struct Flight {
        Direction* direction = nullptr;
        std::size_t row = 0;
    };
    void begin(const nvme::BackendOperation& operation);
    /// The row of what was begun under this id, free again; an empty one: nothing was.
    [[nodiscard]] TraceRow leave(std::size_t id);

    StepTrace& trace_;
    Direction reads_;
    Direction writes_;
    std::vector<Flight> flights_;  ///< by id
};

}  // namespace spillway::offload::detail
