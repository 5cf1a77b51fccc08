// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/detail/require_planes.h"

#include <stdexcept>

#include <fmt/format.h>

namespace spillway::cpu_optim::detail {

void require_masters(std::string_view kernel, const void* master, const void* weight,
                     const void* residue) {
    const bool has_halves = weight != nullptr && residue != nullptr;
    const bool has_half = weight != nullptr || residue != nullptr;
    if (master != nullptr ? has_half : !has_halves)
        throw std::invalid_argument(fmt::format(
            "{}: master is {}, weight is {}, residue is {}: set either master, or weight "
            "and residue",
            kernel, master != nullptr ? "set" : "null", weight != nullptr ? "set" : "null",
            residue != nullptr ? "set" : "null"));
}

void require_state(std::string_view kernel, const ElementwiseRun& run, std::size_t planes) {
    for (std::size_t plane = 0; plane < planes; ++plane)
        if (run.state[plane] == nullptr)
            throw std::invalid_argument(fmt::format(
                "{}: state[{}] is null and this rule keeps {} planes of state: set them all",
                kernel, plane, planes));
}

void require_gradient(std::string_view kernel, const void* gradient) {
    if (gradient == nullptr)
        throw std::invalid_argument(fmt::format("{}: gradient is null: set it", kernel));
}

}  // namespace spillway::cpu_optim::detail
