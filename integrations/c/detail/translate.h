// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/layerwise.h"
#include "engine/interop/tensor_dtype.h"
#include "integrations/c/spillway_types.h"
#include "offload/hyper_groups.h"
#include "offload/tensor_optimizer.h"

/// From the structs of the C interface to those of offload/ and back. What does not translate is a
/// std::invalid_argument naming argument, field, value and what is allowed.
namespace spillway::c_face {

[[nodiscard]] spillway_parameter default_parameter() noexcept;
[[nodiscard]] spillway_group default_group(spillway_optimizer_kind kind);
[[nodiscard]] spillway_options default_options() noexcept;
[[nodiscard]] spillway_step_rule default_step_rule() noexcept;

[[nodiscard]] std::vector<offload::Parameter> parameters_of(const spillway_parameter* parameters,
                                                            std::uint64_t count);
/// Of an optimizer of any family.
using AnyHyper = std::variant<cpu_optim::HyperParameters, cpu_optim::LayerwiseHyperParameters,
                              cpu_optim::AdafactorHyperParameters>;
[[nodiscard]] AnyHyper group_of(const spillway_group* group, const char* name);
[[nodiscard]] offload::HyperGroups groups_of(const spillway_group* groups, std::uint64_t count);
[[nodiscard]] offload::TensorOptimizerOptions options_of(const spillway_options* options);
[[nodiscard]] offload::StepRule step_rule_of(const spillway_step_rule* rule);
[[nodiscard]] cpu_optim::GradientType gradient_type_of(spillway_gradient_type type);
[[nodiscard]] engine::TensorDtype export_dtype_of(spillway_export_type type);
[[nodiscard]] spillway_statistics statistics_of(const offload::TensorOptimizerStatistics& from);

}  // namespace spillway::c_face
