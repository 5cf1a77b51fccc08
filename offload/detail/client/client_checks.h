// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <vector>

#include "offload/element_order.h"
#include "offload/tensor_optimizer.h"

/// What can be said of a client's tensors before anything is made for them. All checks
/// throw std::invalid_argument naming the parameter, what was found and what is needed.
namespace spillway::offload::detail {

[[nodiscard]] std::vector<TensorSpec> tensor_specs(const std::vector<Parameter>& parameters);
[[nodiscard]] std::vector<ParameterType> types_of(const std::vector<Parameter>& parameters);
/// The data pointer, as far as it can be judged.
void check_data(const Parameter& parameter, const void* data, std::uint64_t elements);
void check_gradient(const Parameter& parameter, const Gradient& gradient);
void check_parameters(const std::vector<Parameter>& parameters, const ElementOrder& order,
                      std::size_t groups);
void check_scale(double gradient_scale);

}  // namespace spillway::offload::detail
