// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu_optim/detail/gradient_element.h"
#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/float_formats.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/lossy_state.h"
#include "cpu_optim/split_master.h"
#include "tests/cpu_optim/guarded_buffer.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim::testing {

inline constexpr std::array lossy_formats{StateFormat::bf16, StateFormat::int8};

enum class Values { ordinary, some_zero, any };

/// Of Values::some_zero: whole blocks, and elements among others.
inline bool has_no_gradient(std::size_t i) {
    return i / block_elements == 1 || sample_bits(5, i) % 3 == 0;
}

/// Every plane of one tensor in one lossy format, between guard pages.
class LossyTensor {
    /// use(run) with elements begin to end; before its callers, which take its type from it.
    template <class Use>
    auto with_run(std::size_t begin, std::size_t end, const Use& use) {
        const auto with_common = [&](auto run) {
            run.elements = end - begin;
            run.first_element = begin;
            if (is_split_) {
                run.weight = weight_.span().data() + begin;
                run.residue = residue_.span().data() + begin;
            } else {
                run.master = master_.span().data() + begin;
            }
            run.gradient_type = gradient_type_;
            run.gradient = gradient_type_ == GradientType::fp32
                               ? static_cast<const void*>(gradient32_.span().data() + begin)
                               : static_cast<const void*>(gradient16_.span().data() + begin);
            return run;
        };
        if (format_ == StateFormat::bf16) {
            auto run = with_common(Bf16Run{});
            for (std::size_t plane = 0; plane < most_lossy_planes; ++plane)
                run.state[plane] = halves_[plane]->span().data() + begin;
            return use(run);
        }
        auto run = with_common(Int8Run{});
        for (std::size_t plane = 0; plane < most_lossy_planes; ++plane) {
            run.codes[plane] = codes_[plane]->span().data() + begin;
            run.scales[plane] = scales_[plane]->span().data() + begin / block_elements;
        }
        return use(run);
    }

  public:
    LossyTensor(StateFormat format, std::size_t elements, GradientType gradient, bool is_split,
                Placement placement, Values values)
        : format_(format),
          elements_(elements),
          gradient_type_(gradient),
          is_split_(is_split),
          master_(is_split ? 0 : elements, placement),
          weight_(is_split ? elements : 0, placement),
          residue_(is_split ? elements : 0, placement),
          gradient32_(gradient == GradientType::fp32 ? elements : 0, placement),
          gradient16_(gradient == GradientType::fp32 ? 0 : elements, placement) {
        const std::size_t blocks = (elements + block_elements - 1) / block_elements;
        for (std::size_t plane = 0; plane < most_lossy_planes; ++plane) {
            halves_.push_back(std::make_unique<GuardedBuffer<std::uint16_t>>(elements, placement));
            codes_.push_back(
                std::make_unique<GuardedBuffer<std::uint8_t>>(blocks * block_elements, placement));
            scales_.push_back(std::make_unique<GuardedBuffer<std::uint8_t>>(blocks, placement));
            std::ranges::fill(halves_.back()->span(), std::uint16_t{0});
            std::ranges::fill(codes_.back()->span(), std::uint8_t{0});
            std::ranges::fill(scales_.back()->span(), std::uint8_t{0});
        }
        for (std::size_t i = 0; i < elements; ++i)
            set_master(
                i, values == Values::any ? sample_any(1, i) : sample_magnitude(1, i, 1e-6, 1.0));
        draw_gradient(0, values);
    }

    void draw_gradient(std::uint64_t step, Values values) {
        for (std::size_t i = 0; i < elements_; ++i) {
            // Few of them: one that is not finite makes a block NaN for good.
            const bool is_any = values == Values::any && sample_bits(90 + step, i) % 4096 == 0;
            float value =
                is_any ? sample_any(100 + step, i) : sample_magnitude(100 + step, i, 1e-8, 1e3);
            if (values == Values::some_zero && has_no_gradient(i))
                value = i % 2 == 0 ? 0.0F : -0.0F;
            if (gradient_type_ == GradientType::fp32)
                gradient32_.span()[i] = value;
            else if (gradient_type_ == GradientType::bf16)
                gradient16_.span()[i] = to_bf16(value);
            else
                gradient16_.span()[i] =
                    static_cast<std::uint16_t>(sample_bits(100 + step, i) % 0x7800);
        }
    }

    /// `rule`: of either family.
    template <class Rule>
    std::size_t update(Isa isa, const Rule& rule, const RoundingStream& stream, std::size_t begin,
                       std::size_t end) {
        return with_run(begin, end,
                        [&](const auto& run) { return update_run(isa, rule, stream, run); });
    }
    template <class Rule>
    std::size_t update(Isa isa, const Rule& rule, const RoundingStream& stream) {
        return update(isa, rule, stream, 0, elements_);
    }
    [[nodiscard]] LayerSums measure(Isa isa, const LayerwiseCoefficients& c, std::size_t begin,
                                    std::size_t end) {
        return with_run(begin, end, [&](const auto& run) { return measure_run(isa, c, run); });
    }

    /// "" if all bits of all planes are those of `other`, else what differs where.
    [[nodiscard]] std::string difference(const LossyTensor& other) const {
        std::string found;
        const auto compare = [&](const char* name, auto mine, auto theirs) {
            using Element = typename decltype(mine)::value_type;
            const auto at = testing::first_difference<Element>(mine, theirs);
            if (at != mine.size() && found.empty())
                found = std::string(name) + " " + std::to_string(at);
        };
        compare("master", master_.span(), other.master_.span());
        compare("weight", weight_.span(), other.weight_.span());
        compare("residue", residue_.span(), other.residue_.span());
        for (std::size_t plane = 0; plane < most_lossy_planes; ++plane) {
            compare("halves", halves_[plane]->span(), other.halves_[plane]->span());
            compare("codes", codes_[plane]->span(), other.codes_[plane]->span());
            compare("scales", scales_[plane]->span(), other.scales_[plane]->span());
        }
        return found;
    }
    [[nodiscard]] bool unharmed() const {
        bool all = master_.unharmed() && weight_.unharmed() && residue_.unharmed() &&
                   gradient32_.unharmed() && gradient16_.unharmed();
        for (std::size_t plane = 0; plane < most_lossy_planes; ++plane)
            all = all && halves_[plane]->unharmed() && codes_[plane]->unharmed() &&
                  scales_[plane]->unharmed();
        return all;
    }

    template <class Hyper>
    [[nodiscard]] ElementwiseElement element(const Hyper& hyper, std::size_t i) const {
        ElementwiseElement found;
        found.master =
            is_split_ ? join({weight_.span()[i], residue_.span()[i]}) : master_.span()[i];
        for (std::size_t plane = 0; plane < needs(hyper).state_planes; ++plane)
            found.state[plane] = state(hyper, plane, i);
        return found;
    }
    template <class Hyper>
    [[nodiscard]] float state(const Hyper& hyper, std::size_t plane, std::size_t i) const {
        if (format_ == StateFormat::bf16)
            return from_bf16(halves_[plane]->span()[i]);
        const auto begin = i / block_elements * block_elements;
        return decode(moment_kinds(hyper)[plane],
                      codes_[plane]->span()[begin + code_place(i - begin)], scale(plane, i));
    }
    [[nodiscard]] std::uint8_t scale(std::size_t plane, std::size_t i) const {
        return scales_[plane]->span()[i / block_elements];
    }
    [[nodiscard]] float gradient(std::size_t i) const {
        return gradient_type_ == GradientType::fp32
                   ? gradient32_.span()[i]
                   : detail::gradient_element(gradient16_.span().data(), gradient_type_, i);
    }

  private:
    void set_master(std::size_t i, float value) {
        if (!is_split_) {
            master_.span()[i] = value;
            return;
        }
        const auto halves = split(value);
        weight_.span()[i] = halves.hi;
        residue_.span()[i] = halves.lo;
    }

    StateFormat format_;
    std::size_t elements_;
    GradientType gradient_type_;
    bool is_split_;
    GuardedBuffer<float> master_;
    GuardedBuffer<std::uint16_t> weight_;
    GuardedBuffer<std::int16_t> residue_;
    GuardedBuffer<float> gradient32_;
    GuardedBuffer<std::uint16_t> gradient16_;
    std::vector<std::unique_ptr<GuardedBuffer<std::uint16_t>>> halves_;
    std::vector<std::unique_ptr<GuardedBuffer<std::uint8_t>>> codes_, scales_;
};

}  // namespace spillway::cpu_optim::testing
