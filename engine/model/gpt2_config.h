// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "offload/element_order.h"

namespace spillway::engine {

/// The GPT-2 family (Radford et al. 2019): learned positions, pre-LayerNorm blocks, GELU (tanh
/// form), biases, output layer tied to the token embedding.
struct Gpt2Config {
    std::uint32_t layers = 0;
    std::uint32_t hidden = 0;
    std::uint32_t heads = 0;
    std::uint32_t vocabulary = 256;
    std::uint32_t context = 1024;    ///< learned positions; the longest sequence
    std::uint32_t feed_forward = 0;  ///< 0 until resolved: 4 x hidden

    [[nodiscard]] std::uint32_t head_size() const noexcept { return hidden / heads; }
};

inline constexpr std::uint32_t most_layers = 10'000;

/// "gpt2:LAYERSxHIDDENxHEADS". Throws std::invalid_argument naming the value and what is wrong.
[[nodiscard]] Gpt2Config parse_gpt2(std::string_view text);

/// Fills feed_forward if 0; throws std::invalid_argument if the sizes make no model (zero, hidden
/// not a multiple of heads, ...) or one whose bytes could not be counted.
void resolve(Gpt2Config& config);

/// Hyper-parameter groups of the tensors.
enum class DecayGroup : std::uint32_t { decayed = 0, not_decayed = 1 };  ///< matrices; vectors

/// The tensors in execution order, named as in Hugging Face's GPT-2 ("transformer.wte.weight",
/// "transformer.wpe.weight", "transformer.h.0.ln_1.weight", ..., "transformer.ln_f.bias"). Matrices
/// are [outputs, inputs] row-major (the transpose of Hugging Face's Conv1D). The embedding is tied
/// to the output layer: two contributions.
[[nodiscard]] std::vector<offload::TensorSpec> gpt2_tensors(const Gpt2Config& config);

/// Units: 0 = token embedding, 1 = positions, 2 .. layers+1 = the blocks, layers+2 = final
/// LayerNorm.
[[nodiscard]] std::vector<offload::Unit> gpt2_units(const Gpt2Config& config);

/// The units a pass acquires, in order. `again`: layers whose input backward makes again, by the
/// layer before.
[[nodiscard]] std::vector<std::size_t> gpt2_training_uses(
    const Gpt2Config& config, const std::vector<std::size_t>& again = {});
[[nodiscard]] std::vector<std::size_t> gpt2_evaluation_uses(const Gpt2Config& config);

/// The initial value of one element: a hash of (seed, tensor, element), independent of any
/// placement. Matrices: normal(0, 0.02), the two projections into the residual stream scaled by
/// 1/sqrt(2 layers); LayerNorm weights 1; biases 0. `out[i]` is element `first + i` of the tensor.
void gpt2_initial_values(const Gpt2Config& config, std::uint64_t seed, offload::TensorId tensor,
                         std::uint64_t first, std::span<float> out);

}  // namespace spillway::engine
