// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <vector>

#include "engine/train/train_result.h"

namespace spillway::engine {

/// The result as JSON: the fields of design section 8, settings and plan.
[[nodiscard]] std::string train_report_json(const TrainResult& result);

/// The result for people, a line each: what each tier held and would have had to hold without
/// Spillway, the losses, the speed against its bound.
[[nodiscard]] std::vector<std::string> train_report_lines(const TrainResult& result);

/// The plan for people, before the run: who lives where, in what budget.
[[nodiscard]] std::vector<std::string> train_plan_lines(const TrainPlan& plan,
                                                        const MemoryBudgets& budgets);

/// Memory of the same step with everything in one place: activations and 16 bytes a parameter
/// (fp32 weight, gradient, two moments).
[[nodiscard]] std::size_t bytes_without_offloading(const TrainPlan& plan,
                                                   std::uint64_t parameters) noexcept;

/// "1.50 GiB", for people.
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);

}  // namespace spillway::engine
