// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <vector>

#include "offload/element_order.h"
#include "offload/tensor_optimizer.h"

/// What can be said of a client's tensors and groups before anything is made for them. All checks
/// throw std::invalid_argument naming the parameter or group, what was found and what is needed.
namespace spillway::offload::detail {

[[nodiscard]] std::vector<TensorSpec> tensor_specs(const std::vector<Parameter>& parameters);
[[nodiscard]] std::vector<ParameterType> types_of(const std::vector<Parameter>& parameters);
/// The state planes that serve every group.
[[nodiscard]] std::size_t most_state_planes(const std::vector<cpu_optim::HyperParameters>& groups);

/// `state`: the format in which all groups' state is kept.
void check_groups(const std::vector<cpu_optim::HyperParameters>& groups,
                  cpu_optim::StateFormat state);
/// The data pointer, as far as it can be judged.
void check_data(const Parameter& parameter, const void* data, std::uint64_t elements);
void check_gradient(const Parameter& parameter, const Gradient& gradient);
void check_parameters(const std::vector<Parameter>& parameters, const ElementOrder& order,
                      std::size_t groups);
void check_scale(double gradient_scale);

}  // namespace spillway::offload::detail
