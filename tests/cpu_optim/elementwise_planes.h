// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/split_master.h"
#include "tests/cpu_optim/guarded_buffer.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim::testing {

enum class MasterLayout { whole, halves };
inline constexpr std::array every_layout{MasterLayout::whole, MasterLayout::halves};
inline constexpr std::array every_gradient_type{GradientType::fp32, GradientType::bf16,
                                                GradientType::fp16};

/// Zeros, subnormals, the edges of bf16 and of fp16, infinities and NaNs of both.
inline constexpr std::array<std::uint16_t, 20> awkward_halves{
    0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x03FF, 0x83FF, 0x0400, 0x8400,
    0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7F7F, 0x7F80, 0xFF80, 0x7F81, 0xFFFF};

/// One in eight awkward, the others of magnitudes an optimizer meets.
inline std::uint16_t sample_half(GradientType type, std::uint64_t n) {
    const std::uint64_t bits = sample_bits(50, n);
    if (bits % 8 == 0)
        return awkward_halves[(bits >> 8) % awkward_halves.size()];
    if (type == GradientType::fp16)
        return static_cast<std::uint16_t>((bits >> 8) & 0xDFFFu);  // below 2
    return static_cast<std::uint16_t>(
        std::bit_cast<std::uint32_t>(sample_magnitude(51, n, 1e-12, 1e3)) >> 16);
}

/// What a run starts from: one list of values, so that all runs of a test see the same.
struct StartValues {
    explicit StartValues(std::size_t elements) : master(elements), gradient32(elements) {
        for (auto& plane : state)
            plane.resize(elements);
        for (auto& gradient : gradient16)
            gradient.resize(elements);
        for (std::size_t i = 0; i < elements; ++i) {
            master[i] = sample_any(11, i);
            gradient32[i] = sample_any(12, i);
            for (std::size_t plane = 0; plane < state.size(); ++plane) {
                const float value = sample_any(13 + plane, i);
                state[plane][i] = i % 4 == 3 ? value : std::abs(value);
            }
            gradient16[0][i] = sample_half(GradientType::bf16, i);
            gradient16[1][i] = sample_half(GradientType::fp16, i);
        }
    }
    [[nodiscard]] const void* gradient(GradientType type) const {
        if (type == GradientType::fp32)
            return gradient32.data();
        return gradient16[type == GradientType::bf16 ? 0 : 1].data();
    }

    std::vector<float> master, gradient32;
    std::array<std::vector<float>, most_state_planes> state;
    std::array<std::vector<std::uint16_t>, 2> gradient16;
};

/// All planes a run may need, between guard pages.
class Planes {
  public:
    Planes(std::size_t elements, Placement placement)
        : master_(elements, placement),
          weight_(elements, placement),
          residue_(elements, placement),
          state_{GuardedBuffer<float>(elements, placement),
                 GuardedBuffer<float>(elements, placement),
                 GuardedBuffer<float>(elements, placement)},
          gradient32_(elements, placement),
          gradient16_(elements, placement) {}

    void fill(const StartValues& start, GradientType type) {
        const std::size_t elements = master_.span().size();
        for (std::size_t i = 0; i < elements; ++i) {
            const SplitWeight halves = split(start.master[i]);
            master_.span()[i] = start.master[i];
            weight_.span()[i] = halves.hi;
            residue_.span()[i] = halves.lo;
        }
        for (std::size_t plane = 0; plane < state_.size(); ++plane)
            std::copy_n(start.state[plane].begin(), elements, state_[plane].span().begin());
        if (type == GradientType::fp32)
            std::copy_n(start.gradient32.begin(), elements, gradient32_.span().begin());
        else
            std::copy_n(start.gradient16[type == GradientType::bf16 ? 0 : 1].begin(), elements,
                        gradient16_.span().begin());
    }

    /// Elements [from, from + elements), with `planes` of state.
    [[nodiscard]] ElementwiseRun run(MasterLayout layout, GradientType type, std::size_t planes,
                                     std::size_t from, std::size_t elements) {
        ElementwiseRun run{.elements = elements, .gradient_type = type};
        if (layout == MasterLayout::whole) {
            run.master = master_.span().data() + from;
        } else {
            run.weight = weight_.span().data() + from;
            run.residue = residue_.span().data() + from;
        }
        for (std::size_t plane = 0; plane < planes; ++plane)
            run.state[plane] = state_[plane].span().data() + from;
        if (type == GradientType::fp32)
            run.gradient = gradient32_.span().data() + from;
        else
            run.gradient = gradient16_.span().data() + from;
        return run;
    }
    [[nodiscard]] ElementwiseRun all(MasterLayout layout, GradientType type, std::size_t planes) {
        return run(layout, type, planes, 0, master_.span().size());
    }

    [[nodiscard]] float master(MasterLayout layout, std::size_t i) const {
        return layout == MasterLayout::whole ? master_.span()[i]
                                             : join({weight_.span()[i], residue_.span()[i]});
    }
    [[nodiscard]] float state(std::size_t plane, std::size_t i) const {
        return state_[plane].span()[i];
    }
    [[nodiscard]] bool unharmed() const {
        return master_.unharmed() && weight_.unharmed() && residue_.unharmed() &&
               state_[0].unharmed() && state_[1].unharmed() && state_[2].unharmed() &&
               gradient32_.unharmed() && gradient16_.unharmed();
    }

  private:
    GuardedBuffer<float> master_;
    GuardedBuffer<std::uint16_t> weight_;
    GuardedBuffer<std::int16_t> residue_;
    std::array<GuardedBuffer<float>, most_state_planes> state_;
    GuardedBuffer<float> gradient32_;
    GuardedBuffer<std::uint16_t> gradient16_;
};

/// What the reference makes of the first elements of `start`.
struct Expected {
    Expected(const ElementwiseCoefficients& coefficients, const StartValues& start,
             GradientType type, std::size_t count) {
        elements.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
            const ElementwiseElement old{start.master[i],
                                         {start.state[0][i], start.state[1][i], start.state[2][i]}};
            const float g = detail::gradient_element(start.gradient(type), type, i);
            elements.push_back(std::visit([&](const auto& rule) { return updated(rule, old, g); },
                                          coefficients.rule));
            nonfinite += std::isfinite(elements.back().master) ? 0u : 1u;
            without_finite_hi += has_finite_hi(elements.back().master) ? 0u : 1u;
        }
    }

    [[nodiscard]] std::size_t counted(MasterLayout layout) const {
        return layout == MasterLayout::whole ? nonfinite : without_finite_hi;
    }
    /// The first element of `found` whose bits differ, or the length.
    [[nodiscard]] std::size_t first_difference(const Planes& found, MasterLayout layout,
                                               std::size_t planes) const {
        const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
        for (std::size_t i = 0; i < elements.size(); ++i) {
            bool is_same = bits(found.master(layout, i)) == bits(elements[i].master);
            for (std::size_t plane = 0; plane < planes; ++plane)
                is_same = is_same && bits(found.state(plane, i)) == bits(elements[i].state[plane]);
            if (!is_same)
                return i;
        }
        return elements.size();
    }

    std::vector<ElementwiseElement> elements;
    std::size_t nonfinite = 0;
    std::size_t without_finite_hi = 0;
};

}  // namespace spillway::cpu_optim::testing
