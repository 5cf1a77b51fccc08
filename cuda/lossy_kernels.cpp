// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <variant>

#include <fmt/format.h>

#include "cuda/kernel_planes.h"
#include "cuda/kernels/lossy_parameters.h"
#include "cuda/launch_shapes.h"
#include "cuda/optimizer_kernels.h"

namespace spillway::cuda {
namespace {

using cpu_optim::block_elements;

template <typename Coefficients>
void require_lossy(const Coefficients& coefficients, std::string_view format,
                   const cpu_optim::LossyRun& run, const unsigned long long* counted) {
    if (cpu_optim::needs_exact_state(coefficients))
        throw std::invalid_argument(
            fmt::format("update_run on a device: this rule's state cannot be kept in {}: see "
                        "cpu_optim::check()",
                        format));
    require_updated_planes(run, counted);
}

void require_codes(std::size_t plane, const std::uint8_t* codes, const std::uint8_t* scales) {
    require_plane("update_run", fmt::format("codes[{}]", plane), codes);
    require_plane("update_run", fmt::format("scales[{}]", plane), scales);
    const auto address = reinterpret_cast<std::uintptr_t>(codes);
    if (address % alignof(std::uint32_t) != 0)
        throw std::invalid_argument(
            fmt::format("update_run on a device: codes[{}] lie at {:#x}, but must lie at a "
                        "multiple of {}",
                        plane, address, alignof(std::uint32_t)));
}

/// part(planes, rounding, begin) for each part of a run that one key is for, `begin` being its
/// first element in the run.
template <typename Run, typename Part>
void for_each_key(const Run& run, const cpu_optim::RoundingStream& rounding,
                  unsigned long long* counted, const Part& part) {
    for (std::size_t begin = 0; begin < run.elements;) {
        const std::uint64_t first = run.first_element + begin;
        const std::uint64_t of_one_key = (std::uint64_t{1} << 32) - (first & 0xFFFFFFFFu);
        UpdatedPlanes planes = updated_planes(run, counted);
        planes.elements = std::min<std::uint64_t>(of_one_key, run.elements - begin);
        if (run.master != nullptr) {
            planes.master += begin;
        } else {
            planes.weight += begin;
            planes.residue += begin;
        }
        planes.gradient = static_cast<const std::byte*>(run.gradient) +
                          begin * cpu_optim::gradient_bytes(run.gradient_type);
        part(planes, RoundingSource{cpu_optim::rounding_key(rounding, first), first}, begin);
        begin += planes.elements;
    }
}

template <typename Coefficients>
void update_by(KernelStream& stream, const Coefficients& coefficients,
               const cpu_optim::RoundingStream& rounding, const cpu_optim::Bf16Run& run,
               unsigned long long* counted) {
    require_lossy(coefficients, "bf16", run, counted);
    const std::size_t used = cpu_optim::state_planes(coefficients);
    for (std::size_t plane = 0; plane < used; ++plane)
        require_plane("update_run", fmt::format("state[{}]", plane), run.state[plane]);
    for_each_key(run, rounding, counted,
                 [&](const UpdatedPlanes& planes, const RoundingSource& source, std::size_t begin) {
                     Bf16Update<Coefficients> update{coefficients, planes, source, {}};
                     for (std::size_t plane = 0; plane < used; ++plane)
                         update.state[plane] = run.state[plane] + begin;
                     launch(stream, elementwise_shape(planes.elements), update);
                 });
}

template <typename Coefficients>
void update_by(KernelStream& stream, const Coefficients& coefficients,
               const cpu_optim::RoundingStream& rounding, const cpu_optim::Int8Run& run,
               unsigned long long* counted) {
    constexpr std::size_t lanes = 32;
    require_lossy(coefficients, "int8", run, counted);
    if (run.first_element % block_elements != 0)
        throw std::invalid_argument(
            fmt::format("update_run on a device: a run of int8 state starts at element {} of its "
                        "tensor: it must start at a multiple of {}",
                        run.first_element, block_elements));
    const std::size_t used = cpu_optim::state_planes(coefficients);
    for (std::size_t plane = 0; plane < used; ++plane)
        require_codes(plane, run.codes[plane], run.scales[plane]);
    for_each_key(run, rounding, counted,
                 [&](const UpdatedPlanes& planes, const RoundingSource& source, std::size_t begin) {
                     Int8Update<Coefficients> update{coefficients, planes, source, {}, {}};
                     for (std::size_t plane = 0; plane < used; ++plane) {
                         update.codes[plane] =
                             reinterpret_cast<std::uint32_t*>(run.codes[plane] + begin);
                         update.scales[plane] = run.scales[plane] + begin / block_elements;
                     }
                     launch(stream, elementwise_shape(update.blocks() * lanes), update);
                 });
}

}  // namespace

void update_run(KernelStream& stream, const cpu_optim::ElementwiseCoefficients& coefficients,
                const cpu_optim::RoundingStream& rounding, const cpu_optim::Bf16Run& run,
                unsigned long long* counted) {
    if (run.elements == 0)
        return;
    std::visit([&](const auto& rule) { update_by(stream, rule, rounding, run, counted); },
               coefficients.rule);
}

void update_run(KernelStream& stream, const cpu_optim::ElementwiseCoefficients& coefficients,
                const cpu_optim::RoundingStream& rounding, const cpu_optim::Int8Run& run,
                unsigned long long* counted) {
    if (run.elements == 0)
        return;
    std::visit([&](const auto& rule) { update_by(stream, rule, rounding, run, counted); },
               coefficients.rule);
}

}  // namespace spillway::cuda
