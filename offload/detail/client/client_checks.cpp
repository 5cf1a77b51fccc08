// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/client/client_checks.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::offload::detail {
namespace {

void check_address(const void* data, std::size_t alignment, const std::string& what) {
    if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
        throw std::invalid_argument(
            fmt::format("{} lies at address {}, which is not a multiple of {} bytes", what,
                        fmt::ptr(data), alignment));
}

}  // namespace

std::vector<TensorSpec> tensor_specs(const std::vector<Parameter>& parameters) {
    std::vector<TensorSpec> specs;
    for (const auto& parameter : parameters)
        specs.push_back({parameter.name, parameter.shape, parameter.group, 1});
    return specs;
}

std::vector<ParameterType> types_of(const std::vector<Parameter>& parameters) {
    std::vector<ParameterType> types;
    for (const auto& parameter : parameters)
        types.push_back(parameter.type);
    return types;
}

void check_data(const Parameter& parameter, const void* data, std::uint64_t elements) {
    if (data == nullptr && elements != 0)
        throw std::invalid_argument(
            fmt::format("parameter '{}' has {} elements and no data", parameter.name, elements));
    check_address(data, parameter_bytes(parameter.type),
                  fmt::format("parameter '{}'", parameter.name));
}

void check_gradient(const Parameter& parameter, const Gradient& gradient) {
    const auto what = fmt::format("the gradient of '{}'", parameter.name);
    if (gradient.data == nullptr)
        throw std::invalid_argument(what + " has no data");
    check_address(gradient.data, cpu_optim::gradient_bytes(gradient.type), what);
}

void check_parameters(const std::vector<Parameter>& parameters, const ElementOrder& order,
                      std::size_t groups) {
    for (TensorId tensor = 0; tensor < parameters.size(); ++tensor) {
        const auto& parameter = parameters[tensor];
        if (parameter.group >= groups)
            throw std::invalid_argument(fmt::format("parameter '{}' is of group {}; there are {}",
                                                    parameter.name, parameter.group, groups));
        check_data(parameter, parameter.data, order.range(tensor).size());
    }
}

void check_scale(double gradient_scale) {
    if (!std::isfinite(gradient_scale))
        throw std::invalid_argument(
            fmt::format("gradient_scale is {} and must be finite", gradient_scale));
}

}  // namespace spillway::offload::detail
