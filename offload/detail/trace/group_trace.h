// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <vector>

#include "offload/detail/threads/stall_clock.h"
#include "offload/detail/trace/engine_trace.h"

namespace spillway::offload::detail {

/// What a device of a group does and stands still for.
struct DeviceRecord {
    StallTotals stalls;
    EngineTrace trace;
};

/// Of an engine that serves several devices (DeviceGroup), and of each of them.
struct GroupTrace {
    EngineTrace engine;
    std::vector<EngineTrace> devices;  ///< by rank
};

enum class LayerInputs { stay, leave };

/// Adds their lanes: those of a device carry its rank, and while the engine's thread waits all
/// devices do. Null: empty ones.
[[nodiscard]] GroupTrace trace_group(StepTrace* trace, unsigned ranks, LayerInputs inputs);

}  // namespace spillway::offload::detail
