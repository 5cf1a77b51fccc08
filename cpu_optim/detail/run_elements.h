// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cmath>
#include <cstddef>

#include "cpu_optim/detail/elementwise_run.h"
#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/split_master.h"

/// The elements of a run one by one, as the references take them: what a kernel leaves over.
namespace spillway::cpu_optim::detail {

/// `elements` of a run from `from` on.
[[nodiscard]] inline ElementwiseRun part_of(const ElementwiseRun& run, std::size_t from,
                                            std::size_t elements) noexcept {
    ElementwiseRun part = run;
    part.elements = elements;
    if (run.master != nullptr)
        part.master += from;
    if (run.weight != nullptr)
        part.weight += from;
    if (run.residue != nullptr)
        part.residue += from;
    for (float*& plane : part.state)
        plane = plane != nullptr ? plane + from : nullptr;
    if (run.gradient != nullptr)
        part.gradient =
            static_cast<const std::byte*>(run.gradient) + from * gradient_bytes(run.gradient_type);
    return part;
}

[[nodiscard]] inline RunPointers pointers_of(const ElementwiseRun& run) noexcept {
    return {.elements = run.elements,
            .master = run.master,
            .weight = run.weight,
            .residue = run.residue,
            .state = {run.state[0], run.state[1], run.state[2]},
            .gradient = run.gradient,
            .gradient_type = run.gradient_type};
}

[[nodiscard]] inline ElementwiseElement element_of(const ElementwiseRun& run, std::size_t planes,
                                                   std::size_t i) noexcept {
    ElementwiseElement element;
    element.master = run.master != nullptr ? run.master[i] : join({run.weight[i], run.residue[i]});
    for (std::size_t plane = 0; plane < planes; ++plane)
        element.state[plane] = run.state[plane][i];
    return element;
}

inline void store_state(const ElementwiseRun& run, std::size_t planes,
                        const ElementwiseElement& element, std::size_t i) noexcept {
    for (std::size_t plane = 0; plane < planes; ++plane)
        run.state[plane][i] = element.state[plane];
}

/// Returns 1 if the new master is to be counted (update_run).
[[nodiscard]] inline std::size_t store_master(const ElementwiseRun& run, float master,
                                              std::size_t i) noexcept {
    if (run.master != nullptr) {
        run.master[i] = master;
        return std::isfinite(master) ? 0 : 1;
    }
    const SplitWeight halves = split(master);
    run.weight[i] = halves.hi;
    run.residue[i] = halves.lo;
    return has_finite_hi(master) ? 0 : 1;
}

}  // namespace spillway::cpu_optim::detail
