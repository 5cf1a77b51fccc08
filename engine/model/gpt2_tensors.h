// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>

#include "engine/model/gpt2_config.h"

namespace spillway::engine {

/// The tensors of a block, where they lie in its unit. T is const float (weights) or float
/// (gradients).
template <typename T>
struct BlockTensors {
    T* ln_1_weight;
    T* ln_1_bias;
    T* qkv_weight;
    T* qkv_bias;
    T* projection_weight;
    T* projection_bias;
    T* ln_2_weight;
    T* ln_2_bias;
    T* up_weight;  ///< mlp.c_fc
    T* up_bias;
    T* down_weight;  ///< mlp.c_proj
    T* down_bias;
};

template <typename T>
struct NormTensors {
    T* weight;
    T* bias;
};

/// Offsets inside units, the same for all blocks. Immutable.
class Gpt2Offsets {
  public:
    explicit Gpt2Offsets(const Gpt2Config& config);

    template <typename T>
    [[nodiscard]] BlockTensors<T> block(T* unit) const {
        const auto& at = block_;
        return {unit + at[0], unit + at[1], unit + at[2],  unit + at[3],
                unit + at[4], unit + at[5], unit + at[6],  unit + at[7],
                unit + at[8], unit + at[9], unit + at[10], unit + at[11]};
    }
    template <typename T>
    [[nodiscard]] NormTensors<T> final_norm(T* unit) const {
        return {unit, unit + final_bias_};
    }

  private:
    std::array<std::size_t, 12> block_{};
    std::size_t final_bias_ = 0;
};

}  // namespace spillway::engine
