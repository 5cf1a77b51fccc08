// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/adamw.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/require_same_length.h"
#include "cpu_optim/split_master.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/adamw.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/split_master-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE FloatVector with_one_nan(FloatVector value) {
    const auto quiet_nan = hn::BitCast(FloatTag(), hn::Set(BitsTag(), 0x7FC00000u));
    return hn::IfThenElse(hn::IsNaN(value), quiet_nan, value);
}

/// adamw_reference, line by line, for the whole vectors of a run.
std::size_t update_whole_vectors(const AdamWCoefficients& c, std::uint16_t* HWY_RESTRICT weight,
                                 std::int16_t* HWY_RESTRICT residue, float* HWY_RESTRICT m,
                                 float* HWY_RESTRICT v, const float* HWY_RESTRICT gradient,
                                 std::size_t elements,
                                 std::size_t* HWY_RESTRICT without_finite_hi) {
    const FloatTag d;
    const auto gradient_scale = hn::Set(d, c.gradient_scale);
    const auto decay = hn::Set(d, c.decay);
    const auto one_minus_beta1 = hn::Set(d, c.one_minus_beta1);
    const auto beta2 = hn::Set(d, c.beta2);
    const auto one_minus_beta2 = hn::Set(d, c.one_minus_beta2);
    const auto inv_sqrt_bias_correction2 = hn::Set(d, c.inv_sqrt_bias_correction2);
    const auto epsilon = hn::Set(d, c.epsilon);
    const auto step_size = hn::Set(d, c.step_size);

    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    std::size_t bad = 0;
    for (; i + lanes <= elements; i += lanes) {
        const auto old_m = hn::LoadU(d, m + i);
        const auto old_v = hn::LoadU(d, v + i);
        auto master = load_master(weight + i, residue + i);

        const auto g = hn::Mul(hn::LoadU(d, gradient + i), gradient_scale);
        master = hn::NegMulAdd(decay, master, master);
        const auto new_m = hn::MulAdd(one_minus_beta1, hn::Sub(g, old_m), old_m);
        const auto new_v = hn::MulAdd(hn::Mul(one_minus_beta2, g), g, hn::Mul(beta2, old_v));
        const auto root = hn::MulAdd(hn::Sqrt(new_v), inv_sqrt_bias_correction2, epsilon);
        master = hn::Sub(master, hn::Div(hn::Mul(step_size, new_m), root));

        hn::StoreU(with_one_nan(new_m), d, m + i);
        hn::StoreU(with_one_nan(new_v), d, v + i);
        bad += store_master(with_one_nan(master), weight + i, residue + i);
    }
    *without_finite_hi = bad;
    return i;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

using AdamWKernel = std::size_t(const AdamWCoefficients&, std::uint16_t*, std::int16_t*, float*,
                                float*, const float*, std::size_t, std::size_t*);

constexpr detail::KernelTable<AdamWKernel> adamw_kernels =
    SPILLWAY_KERNEL_TABLE(update_whole_vectors);

/// Which NaN an operation passes on depends on the order the compiler gave its operands.
float with_one_nan(float value) {
    return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
}

double power(double base, std::uint64_t exponent) {
    double result = 1;
    for (; exponent != 0; exponent >>= 1) {
        if ((exponent & 1) != 0)
            result *= base;
        base *= base;
    }
    return result;
}

void require_not_negative(std::string_view name, double value) {
    if (!std::isfinite(value) || value < 0)
        throw std::invalid_argument(
            fmt::format("AdamW: {} is {} and must be a finite number, 0 or more", name, value));
}

void require_beta(std::string_view name, double value) {
    if (!(value >= 0 && value < 1))
        throw std::invalid_argument(
            fmt::format("AdamW: {} is {} and must be at least 0 and below 1", name, value));
}

float narrow(std::string_view name, double value) {
    const auto narrowed = static_cast<float>(value);
    if (!std::isfinite(narrowed))
        throw std::invalid_argument(fmt::format(
            "AdamW: {} comes to {}, more than a float holds: lower the hyper-parameters behind it",
            name, value));
    return narrowed;
}

void require_one_length(const AdamWSpans& spans) {
    const auto needed = spans.weight.size();
    detail::require_same_length("adamw_update", "residue", spans.residue.size(), needed);
    detail::require_same_length("adamw_update", "m", spans.m.size(), needed);
    detail::require_same_length("adamw_update", "v", spans.v.size(), needed);
    detail::require_same_length("adamw_update", "gradient", spans.gradient.size(), needed);
}

}  // namespace

AdamWCoefficients make_coefficients(const AdamWHyperParameters& hyper, std::uint64_t step,
                                    double gradient_scale) {
    require_not_negative("learning_rate", hyper.learning_rate);
    require_not_negative("epsilon", hyper.epsilon);
    require_not_negative("weight_decay", hyper.weight_decay);
    require_not_negative("gradient_scale", gradient_scale);
    require_beta("beta1", hyper.beta1);
    require_beta("beta2", hyper.beta2);
    if (step == 0)
        throw std::invalid_argument("AdamW: step is 0 and must be 1 at a tensor's first update");

    const double bias_correction1 = 1 - power(hyper.beta1, step);
    const double bias_correction2 = 1 - power(hyper.beta2, step);
    return {
        .gradient_scale = narrow("gradient_scale", gradient_scale),
        .decay = narrow("learning_rate * weight_decay", hyper.learning_rate * hyper.weight_decay),
        .one_minus_beta1 = narrow("1 - beta1", 1 - hyper.beta1),
        .beta2 = narrow("beta2", hyper.beta2),
        .one_minus_beta2 = narrow("1 - beta2", 1 - hyper.beta2),
        .inv_sqrt_bias_correction2 =
            narrow("1 / sqrt(1 - beta2^step)", 1 / std::sqrt(bias_correction2)),
        .epsilon = narrow("epsilon", hyper.epsilon),
        .step_size =
            narrow("learning_rate / (1 - beta1^step)", hyper.learning_rate / bias_correction1),
    };
}

// Four products are fused with the addition after them, where std::fma stands; every other
// operation rounds on its own (the build sets -ffp-contract=off). Division and square root are
// IEEE's.
AdamWElement adamw_reference(const AdamWCoefficients& c, AdamWElement element, float gradient) {
    auto [w, m, v] = element;
    const float g = gradient * c.gradient_scale;
    w = std::fma(-c.decay, w, w);
    m = std::fma(c.one_minus_beta1, g - m, m);
    v = std::fma(c.one_minus_beta2 * g, g, c.beta2 * v);
    const float root = std::fma(std::sqrt(v), c.inv_sqrt_bias_correction2, c.epsilon);
    w = w - (c.step_size * m) / root;
    return {.master = with_one_nan(w), .m = with_one_nan(m), .v = with_one_nan(v)};
}

std::size_t adamw_update(Isa isa, const AdamWCoefficients& coefficients, const AdamWSpans& spans) {
    require_one_length(spans);
    const auto& [weight, residue, m, v, gradient] = spans;
    std::size_t i = 0;
    std::size_t without_finite_hi = 0;
    if (const auto kernel = adamw_kernels.at(isa))
        i = kernel(coefficients, weight.data(), residue.data(), m.data(), v.data(), gradient.data(),
                   weight.size(), &without_finite_hi);
    for (; i < weight.size(); ++i) {
        const AdamWElement old{.master = join({weight[i], residue[i]}), .m = m[i], .v = v[i]};
        const AdamWElement updated = adamw_reference(coefficients, old, gradient[i]);
        const SplitWeight halves = split(updated.master);
        weight[i] = halves.hi;
        residue[i] = halves.lo;
        m[i] = updated.m;
        v[i] = updated.v;
        without_finite_hi += has_finite_hi(updated.master) ? 0u : 1u;
    }
    return without_finite_hi;
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
