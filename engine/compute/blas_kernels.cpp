// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/blas_kernels.h"

#include <algorithm>
#include <array>

#include <cblas.h>

namespace spillway::engine {
namespace {

/// Without AVX2's fused multiplication and addition.
constexpr std::array<std::string_view, 17> narrow_kernels{
    "Prescott", "Core2",        "Penryn",     "Dunnington", "Nehalem", "Sandybridge",
    "Atom",     "Katmai",       "Coppermine", "Northwood",  "Banias",  "Athlon",
    "Opteron",  "Opteron_SSE3", "Barcelona",  "Bobcat",     "Nano"};

bool same_name(std::string_view left, std::string_view right) {
    // Spelt "Prescott" by one version and "PRESCOTT" by another.
    return std::ranges::equal(left, right, [](char a, char b) { return (a | 0x20) == (b | 0x20); });
}

}  // namespace

std::string blas_kernels() {
    return openblas_get_corename();
}

std::optional<std::string> faster_blas_kernels(std::string_view chosen, cpu_optim::Isa isa) {
    if (std::ranges::none_of(narrow_kernels,
                             [&](auto narrow) { return same_name(narrow, chosen); }))
        return std::nullopt;
    switch (isa) {
        case cpu_optim::Isa::scalar:
            return std::nullopt;
        case cpu_optim::Isa::avx2:
            return "Haswell";
        case cpu_optim::Isa::avx512:
            return "SkylakeX";
    }
    return std::nullopt;
}

}  // namespace spillway::engine
