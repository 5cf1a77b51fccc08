// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/device.h"
#include "offload/step_trace.h"

namespace spillway::offload::detail {

/// Where the parts of an engine record what they do. Empty: nowhere.
struct EngineTrace {
    TraceRow compute;         ///< forward and backward, for the client
    TraceRow compute_stalls;  ///< waits: of the compute stream
    TraceRow driver_stalls;   ///< waits: of the thread that feeds it
    TraceRow weights_up;      ///< copies to the device; of a device with memory of its own
    TraceRow weights;         ///< joining halves
    TraceRow weight_waits;
    TraceRow gradients_down;  ///< copies from the device; of a device with memory of its own
    TraceRow gradients;       ///< adding up (on the host, taking in too) and scanning
    TraceRow update;
    TraceRow update_waits;
    TraceRow commit;
    TraceRow inputs;  ///< layers' inputs, copied from the device and to it
    TraceRow input_waits;

    // ---- of a device in a group
    TraceRow pass_waits;   ///< waits: of one that is through with its part of a pass
    TraceRow gathers;      ///< units put together of all devices' shares
    TraceRow taken_over;   ///< gradients, from the device before it
    TraceRow taken_share;  ///< its share of a gradient, from the last device
};

/// Adds the lanes of an engine that streams weights to a device of that kind. Null: an empty one.
[[nodiscard]] EngineTrace trace_engine(StepTrace* trace, cuda::MemoryKind device);
/// Adds the lane of the inputs of layers that leave the device.
void trace_activations(StepTrace* trace, EngineTrace& rows);
/// The lanes of one whose weights are its client's: updates and commits.
[[nodiscard]] EngineTrace trace_updates(StepTrace* trace);

}  // namespace spillway::offload::detail
