// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <variant>

#include <fmt/format.h>

#include "cpu_optim/detail/elementwise_run.h"
#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/detail/require_planes.h"
#include "cpu_optim/lossy_state.h"
#include "cpu_optim/moment_kinds.h"
#include "cpu_optim/split_master.h"

namespace spillway::cpu_optim::detail {

/// A LossyRun in bare pointers, with the key of its random numbers; one for each lossy format.
struct LossyPointers {
    std::size_t elements;
    std::uint64_t first_element;
    RoundingKey key;
    float* master;
    std::uint16_t* weight;
    std::int16_t* residue;
    const void* gradient;
    GradientType gradient_type;
};
struct Bf16Pointers : LossyPointers {
    std::uint16_t* state[most_lossy_planes];
};
struct Int8Pointers : LossyPointers {
    std::uint8_t* codes[most_lossy_planes];
    std::uint8_t* scales[most_lossy_planes];
};

[[nodiscard]] inline LossyPointers lossy_pointers(const LossyRun& run, RoundingKey key) noexcept {
    return {.elements = run.elements,
            .first_element = run.first_element,
            .key = key,
            .master = run.master,
            .weight = run.weight,
            .residue = run.residue,
            .gradient = run.gradient,
            .gradient_type = run.gradient_type};
}

[[nodiscard]] inline float master_of(const LossyPointers& run, std::size_t i) noexcept {
    return run.master != nullptr ? run.master[i] : join({run.weight[i], run.residue[i]});
}
/// Returns 1 if the new master is to be counted (update_run).
[[nodiscard]] inline std::size_t store_master(const LossyPointers& run, float master,
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

/// Elements of a run from its start on that have the same upper 32 bits: one key is for them.
[[nodiscard]] inline std::size_t elements_of_one_key(std::uint64_t first,
                                                     std::size_t elements) noexcept {
    const std::uint64_t left = (std::uint64_t{1} << 32) - (first & 0xFFFFFFFFu);
    return static_cast<std::size_t>(std::min<std::uint64_t>(left, elements));
}

/// `run` from its element `begin` on, `elements` long; its state stays where it is.
template <class Run>
[[nodiscard]] Run moved(Run run, std::size_t begin, std::size_t elements) noexcept {
    const auto by = [begin](auto* plane) { return plane == nullptr ? plane : plane + begin; };
    run.elements = elements;
    run.first_element += begin;
    run.master = by(run.master);
    run.weight = by(run.weight);
    run.residue = by(run.residue);
    run.gradient =
        static_cast<const std::byte*>(run.gradient) + begin * gradient_bytes(run.gradient_type);
    return run;
}

/// Throws unless this rule may be kept in `format` and the run has weights and a gradient.
template <class Coefficients>
void require_lossy(const Coefficients& coefficients, StateFormat format, const LossyRun& run) {
    if (needs_exact_state(coefficients))
        throw std::invalid_argument(
            fmt::format("update_run: this rule's state cannot be kept in {}: see check()",
                        state_format_name(format)));
    require_masters("update_run", run.master, run.weight, run.residue);
    if (run.gradient == nullptr)
        throw std::invalid_argument("update_run: gradient is null: set it");
}

/// Throws in the name of `kernel` if this plane is null.
inline void require_state_plane(const char* kernel, const char* name, std::size_t plane,
                                const void* data) {
    if (data == nullptr)
        throw std::invalid_argument(
            fmt::format("{}: {}[{}] is null and this rule keeps it: set it", kernel, name, plane));
}

/// The same unless a run of int8 state starts on a block.
inline void require_block(const char* kernel, std::uint64_t first_element) {
    if (first_element % block_elements != 0)
        throw std::invalid_argument(
            fmt::format("{}: a run of int8 state starts at element {} of its tensor: it must start "
                        "at a multiple of {}",
                        kernel, first_element, block_elements));
}

}  // namespace spillway::cpu_optim::detail
