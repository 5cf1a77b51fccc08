// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/fused_update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <variant>

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/require_planes.h"
#include "cpu_optim/detail/run_elements.h"

namespace spillway::cpu_optim {
namespace {

/// With all planes some 24 KiB, which the nearest cache holds on every processor with AVX2.
constexpr std::size_t cached_elements = 1024;
using Block = std::array<float, cached_elements>;

bool has_master(const ElementwiseRun& run) {
    return run.master != nullptr || run.weight != nullptr || run.residue != nullptr;
}

FusedRun block_of(const FusedRun& whole, std::size_t from) {
    FusedRun block = whole;
    block.run =
        detail::part_of(whole.run, from, std::min(cached_elements, whole.run.elements - from));
    block.half = whole.half != nullptr ? whole.half + from : nullptr;
    block.average = whole.average != nullptr ? whole.average + from : nullptr;
    return block;
}

void average(Isa isa, const FusedRun& block, const float* master) {
    if (block.average == nullptr)
        return;
    const bool is_split = master == nullptr;
    update_average(isa, block.average_coefficients,
                   {.elements = block.run.elements,
                    .master = master,
                    .weight = is_split ? block.run.weight : nullptr,
                    .residue = is_split ? block.run.residue : nullptr,
                    .average = block.average});
}

/// The half is the weight: it is widened for the update and narrowed after it.
std::size_t update_halves(Isa isa, const ElementwiseCoefficients& coefficients,
                          const FusedRun& block) {
    alignas(64) Block weights;
    ElementwiseRun run = block.run;
    run.master = weights.data();
    widen(isa, block.half_format, block.half, weights.data(), run.elements);
    // What update_run() counts is not finite in 16 bits either, and counted there.
    static_cast<void>(update_run(isa, coefficients, run));
    const auto nonfinite = narrow(isa, block.half_format, weights.data(), block.half, run.elements);
    if (block.average != nullptr)
        widen(isa, block.half_format, block.half, weights.data(), run.elements);
    average(isa, block, weights.data());
    return nonfinite;
}

/// Masters that are not finite as they are stored, or as `halves`.
std::size_t count_nonfinite(const ElementwiseRun& run, HalfFormat format,
                            const std::uint16_t* halves) {
    const unsigned infinity = format == HalfFormat::bf16 ? 0x7F80 : 0x7C00;
    std::size_t count = 0;
    for (std::size_t i = 0; i < run.elements; ++i) {
        const float master = detail::element_of(run, 0, i).master;
        const bool is_stored =
            run.master != nullptr ? std::isfinite(master) : has_finite_hi(master);
        count += is_stored && (halves[i] & 0x7FFFu) < infinity ? 0u : 1u;
    }
    return count;
}

std::size_t update_masters(Isa isa, const ElementwiseCoefficients& coefficients,
                           const FusedRun& block) {
    const ElementwiseRun& run = block.run;
    const std::size_t nonfinite = update_run(isa, coefficients, run);
    average(isa, block, run.master);
    if (block.half == nullptr)
        return nonfinite;
    alignas(64) Block weights;
    const float* master = run.master;
    if (master == nullptr) {
        join_master(isa, {run.weight, run.elements}, {run.residue, run.elements},
                    {weights.data(), run.elements});
        master = weights.data();
    }
    const auto halves_nonfinite = narrow(isa, block.half_format, master, block.half, run.elements);
    // Rare, so that the two counts are only then brought together one by one.
    return nonfinite + halves_nonfinite == 0 ? 0
                                             : count_nonfinite(run, block.half_format, block.half);
}

void require_planes(const ElementwiseCoefficients& coefficients, const FusedRun& fused) {
    const ElementwiseRun& run = fused.run;
    if (fused.half == nullptr || has_master(run))
        detail::require_masters("update_fused", run.master, run.weight, run.residue);
    detail::require_state(
        "update_fused", run,
        std::visit([](const auto& rule) { return state_planes(rule); }, coefficients.rule));
    detail::require_gradient("update_fused", run.gradient);
}

}  // namespace

std::size_t update_fused(Isa isa, const ElementwiseCoefficients& coefficients,
                         const FusedRun& run) {
    detail::require_supported(isa);
    if (run.run.elements == 0)
        return 0;
    require_planes(coefficients, run);
    const bool half_is_weight = !has_master(run.run);
    std::size_t nonfinite = 0;
    for (std::size_t from = 0; from < run.run.elements; from += cached_elements) {
        const FusedRun block = block_of(run, from);
        nonfinite += half_is_weight ? update_halves(isa, coefficients, block)
                                    : update_masters(isa, coefficients, block);
    }
    return nonfinite;
}

}  // namespace spillway::cpu_optim
