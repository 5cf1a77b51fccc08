// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/model/gpt2_step.h"
#include "engine/plan/planned_run.h"
#include "engine/plan/step_costs.h"
#include "offload/offload_engine.h"

namespace spillway::engine {

/// The passes of a run, on its device or on several that share each step. Not thread-safe.
class StepPasses {
  public:
    virtual ~StepPasses() = default;

    /// Announces a pass, as OffloadEngine::begin_pass().
    virtual void begin(const std::vector<std::size_t>& uses, offload::WeightKind kind) = 0;
    /// As Gpt2Step has them, of the step's sequences in order.
    virtual double train(std::span<const std::int32_t> tokens) = 0;
    virtual double evaluate(std::span<const std::int32_t> tokens) = 0;
    /// Of the last pass; of several devices, on the first.
    [[nodiscard]] virtual PassTimes times() const noexcept = 0;
};

/// Takes the activations' memory; run, machine and engine must outlive it. On several devices the
/// loss is the mean of their means: up to the rounding of a double what one device says. Gradients
/// have the bits of one device (offload::DeviceGroup).
[[nodiscard]] std::unique_ptr<StepPasses> make_passes(const PlannedRun& run,
                                                      const RunMachine& machine,
                                                      offload::OffloadEngine& engine);

}  // namespace spillway::engine
