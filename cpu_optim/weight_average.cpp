// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/weight_average.h"

#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/one_nan.h"
#include "cpu_optim/detail/require_planes.h"
#include "cpu_optim/split_master.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/weight_average.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu_optim/detail/master-inl.h"

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

template <class Master>
std::size_t average_with(const AverageCoefficients& c, const Master& master,
                         float* HWY_RESTRICT averages, std::size_t elements) {
    const FloatTag d;
    const std::size_t lanes = hn::Lanes(d);
    const auto share = hn::Set(d, c.share);
    const auto starts = hn::FirstN(d, c.starts == Term::on ? lanes : 0);
    std::size_t i = 0;
    for (; i + lanes <= elements; i += lanes) {
        const auto weight = master.load(i);
        const auto average = hn::LoadU(d, averages + i);
        const auto moved = hn::MulAdd(share, hn::Sub(weight, average), average);
        hn::StoreU(with_one_nan(hn::IfThenElse(starts, weight, moved)), d, averages + i);
    }
    return i;
}

std::size_t average_whole_vectors(const AverageCoefficients& c, const AverageRun& run) {
    if (run.master != nullptr)
        return average_with(c, WholeMaster<const float>{run.master}, run.average, run.elements);
    return average_with(
        c, HalvedMaster<const std::uint16_t, const std::int16_t>{run.weight, run.residue},
        run.average, run.elements);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

constexpr detail::KernelTable<std::size_t(const AverageCoefficients&, const AverageRun&)>
    average_kernels = SPILLWAY_KERNEL_TABLE(average_whole_vectors);

double share_of(const EmaParameters& parameters, std::uint64_t /*averaged*/) {
    if (!(parameters.decay >= 0 && parameters.decay <= 1))
        throw std::invalid_argument(
            fmt::format("EMA: decay is {} and must be at least 0 and at most 1", parameters.decay));
    return 1 - parameters.decay;
}

double share_of(const SwaParameters& /*parameters*/, std::uint64_t averaged) {
    return 1 / (static_cast<double>(averaged) + 1);
}

}  // namespace

AverageCoefficients make_average_coefficients(const AverageParameters& parameters,
                                              std::uint64_t averaged) {
    const double share =
        std::visit([&](const auto& kind) { return share_of(kind, averaged); }, parameters);
    return {.starts = averaged == 0 ? Term::on : Term::off, .share = static_cast<float>(share)};
}

float averaged(const AverageCoefficients& coefficients, float average, float weight) {
    if (coefficients.starts == Term::on)
        return detail::with_one_nan(weight);
    return detail::with_one_nan(std::fma(coefficients.share, weight - average, average));
}

void update_average(Isa isa, const AverageCoefficients& coefficients, const AverageRun& run) {
    const auto kernel = average_kernels.at(isa);
    if (run.elements == 0)
        return;
    detail::require_masters("update_average", run.master, run.weight, run.residue);
    if (run.average == nullptr)
        throw std::invalid_argument("update_average: average is null: set it");
    std::size_t i = kernel != nullptr ? kernel(coefficients, run) : 0;
    for (; i < run.elements; ++i) {
        const float weight =
            run.master != nullptr ? run.master[i] : join({run.weight[i], run.residue[i]});
        run.average[i] = averaged(coefficients, run.average[i], weight);
    }
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
