// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <span>

#include "offload/plan.h"

namespace spillway::offload::detail {

/// Adds the bytes that a step moves to `plan`, whose residency and slots are chosen, those of the
/// planes that a commit writes, and the room of spilled gradients and layers' inputs on the drive.
void count_traffic(const ElementOrder& order, std::span<const Unit> units,
                   const PlanRequest& request, OffloadPlan& plan);

}  // namespace spillway::offload::detail
