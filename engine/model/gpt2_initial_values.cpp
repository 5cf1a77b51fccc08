// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "engine/model/gpt2_config.h"

namespace spillway::engine {
namespace {

/// The step and the finaliser of splitmix64 (Steele, Lea & Flood 2014): a bijection whose every
/// output bit depends on every input bit.
constexpr std::uint64_t golden_step = 0x9E3779B97F4A7C15u;

constexpr std::uint64_t scramble(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/// Tells these random numbers from those of other purposes of the same seed ("init" in ASCII).
constexpr std::uint64_t purpose = 0x696E6974u;

constexpr std::uint64_t tensor_key(std::uint64_t seed, offload::TensorId tensor) {
    return scramble(scramble(seed + golden_step) + (purpose << 32) + tensor);
}

struct NormalPair {
    double even, odd;
};

/// Two independent normal(0, 1) numbers (Box & Muller 1958) from the 64 bits of pair `index`: one
/// half gives a uniform in (0, 1], the other an angle.
NormalPair normal_pair(std::uint64_t key, std::uint64_t index) {
    constexpr double two_to_minus_32 = 0x1p-32;
    const std::uint64_t bits = scramble(key + index * golden_step);
    const double uniform = (static_cast<double>(bits >> 32) + 1.0) * two_to_minus_32;
    const double angle =
        static_cast<double>(bits & 0xFFFFFFFFu) * (two_to_minus_32 * 2.0 * std::numbers::pi);
    const double radius = std::sqrt(-2.0 * std::log(uniform));
    return {radius * std::cos(angle), radius * std::sin(angle)};
}

void fill_normal(std::uint64_t key, double deviation, std::uint64_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size();) {
        const std::uint64_t element = first + i;
        const NormalPair pair = normal_pair(key, element / 2);
        if (element % 2 == 0)
            out[i++] = static_cast<float>(deviation * pair.even);
        if (i < out.size())
            out[i++] = static_cast<float>(deviation * pair.odd);
    }
}

}  // namespace

void gpt2_initial_values(const Gpt2Config& config, std::uint64_t seed, offload::TensorId tensor,
                         std::uint64_t first, std::span<float> out) {
    constexpr double deviation = 0.02;
    const auto specs = gpt2_tensors(config);
    if (tensor >= specs.size() || first + out.size() > specs[tensor].elements())
        throw std::invalid_argument(fmt::format(
            "initial values of tensor {}, elements {} to {}: the model has no such ones", tensor,
            first, first + out.size()));
    const std::string_view name = specs[tensor].name;
    if (specs[tensor].shape.size() == 1) {
        std::fill(out.begin(), out.end(), name.ends_with(".weight") ? 1.0f : 0.0f);
        return;
    }
    const double projection = name.ends_with("c_proj.weight")
                                  ? 1.0 / std::sqrt(2.0 * static_cast<double>(config.layers))
                                  : 1.0;
    fill_normal(tensor_key(seed, tensor), deviation * projection, first, out);
}

}  // namespace spillway::engine
