// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/isa.h"

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <fmt/format.h>

#include "cpu_optim/detail/kernel_table.h"
#include "cpu_optim/detail/require_same_length.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_optim/isa.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SPILLWAY_VECTOR_TARGET
HWY_BEFORE_NAMESPACE();
namespace spillway::cpu_optim {
namespace HWY_NAMESPACE {
namespace {

std::size_t lanes() {
    return hwy::HWY_NAMESPACE::Lanes(hwy::HWY_NAMESPACE::ScalableTag<float>());
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::cpu_optim
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE
namespace spillway::cpu_optim {
namespace {

constexpr std::array every_isa{Isa::scalar, Isa::avx2, Isa::avx512};
constexpr detail::KernelTable<std::size_t()> lanes_kernels = SPILLWAY_KERNEL_TABLE(lanes);

/// Asked once: under a hypervisor each CPUID is a trap of microseconds.
std::int64_t highway_targets() noexcept {
    static const std::int64_t targets = hwy::SupportedTargets();
    return targets;
}

bool is_supported(Isa isa) noexcept {
    switch (isa) {
        case Isa::scalar:
            return true;
        case Isa::avx2:
            return (highway_targets() & HWY_AVX2) != 0;
        case Isa::avx512:
            return (highway_targets() & HWY_AVX3) != 0;
    }
    return false;
}

template <typename Isas>
std::string names_of(const Isas& isas) {
    std::string names;
    for (const Isa isa : isas)
        names += fmt::format("{}{}", names.empty() ? "" : ", ", isa_name(isa));
    return names;
}

}  // namespace

void detail::require_supported(Isa isa) {
    if (!is_supported(isa))
        throw std::invalid_argument(
            fmt::format("instruction set {} does not run on this machine, which supports {}: "
                        "choose one of these",
                        isa_name(isa), names_of(supported_isas())));
}

void detail::require_same_length(std::string_view kernel, std::string_view span, std::size_t found,
                                 std::size_t needed) {
    if (found != needed)
        throw std::invalid_argument(fmt::format(
            "{}: span {} has {} elements and needs {}: all spans of a call have one length", kernel,
            span, found, needed));
}

Isa best_isa() noexcept {
    for (auto isa = every_isa.rbegin(); isa != every_isa.rend(); ++isa)
        if (is_supported(*isa))
            return *isa;
    return Isa::scalar;
}

std::vector<Isa> supported_isas() {
    std::vector<Isa> isas;
    for (const Isa isa : every_isa)
        if (is_supported(isa))
            isas.push_back(isa);
    return isas;
}

std::string_view isa_name(Isa isa) noexcept {
    switch (isa) {
        case Isa::scalar:
            return "scalar";
        case Isa::avx2:
            return "avx2";
        case Isa::avx512:
            return "avx512";
    }
    return "unknown";
}

std::size_t isa_float_lanes(Isa isa) {
    const auto kernel = lanes_kernels.at(isa);
    return kernel == nullptr ? 1 : kernel();
}

Isa parse_isa(std::string_view name) {
    if (name == "auto")
        return best_isa();
    for (const Isa isa : every_isa) {
        if (name != isa_name(isa))
            continue;
        detail::require_supported(isa);
        return isa;
    }
    throw std::invalid_argument(fmt::format(
        "unknown instruction set \"{}\": accepted are auto, {}; this machine supports {}", name,
        names_of(every_isa), names_of(supported_isas())));
}

}  // namespace spillway::cpu_optim
#endif  // HWY_ONCE
