// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "cuda/kernels/parameters.h"

/// What the calls that launch a kernel ask of the planes they are given.
namespace spillway::cuda {

inline void require_plane(std::string_view kernel, std::string_view plane, const void* data) {
    if (data == nullptr)
        throw std::invalid_argument(
            fmt::format("{} on a device: {} is null: set it", kernel, plane));
}

/// Either the whole master or both its halves.
inline void require_masters(std::string_view kernel, const void* master, const void* weight,
                            const void* residue) {
    const bool halves = weight != nullptr && residue != nullptr;
    const bool no_half = weight == nullptr && residue == nullptr;
    if (master != nullptr ? !no_half : !halves)
        throw std::invalid_argument(
            fmt::format("{} on a device: set either master, or weight and residue", kernel));
}

/// All that an update uses but the state. `Run`: of cpu_optim, whatever its format of state.
template <typename Run>
void require_updated_planes(const Run& run, const unsigned long long* counted) {
    require_masters("update_run", run.master, run.weight, run.residue);
    require_plane("update_run", "gradient", run.gradient);
    require_plane("update_run", "counted", counted);
}

template <typename Run>
[[nodiscard]] UpdatedPlanes updated_planes(const Run& run, unsigned long long* counted) {
    return {.elements = run.elements,
            .master = run.master,
            .weight = run.weight,
            .residue = run.residue,
            .gradient = run.gradient,
            .gradient_type = run.gradient_type,
            .counted = counted};
}

}  // namespace spillway::cuda
