// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/kernel_names.h"

#include <array>

#include "cpu_optim/elementwise_coefficients.h"
#include "cuda/kernels/attention_parameters.h"
#include "cuda/kernels/lossy_parameters.h"
#include "cuda/kernels/parameters.h"
#include "cuda/kernels/trainer_parameters.h"

namespace spillway::cuda {
namespace {

template <typename... Parameters>
constexpr std::array<const char*, sizeof...(Parameters)> names_of() {
    return {Parameters::kernel...};
}

constexpr auto names = names_of<
    ElementwiseUpdate<cpu_optim::AdamCoefficients>, ElementwiseUpdate<cpu_optim::SgdCoefficients>,
    ElementwiseUpdate<cpu_optim::AdagradCoefficients>,
    ElementwiseUpdate<cpu_optim::LionCoefficients>,
    ElementwiseUpdate<cpu_optim::RmspropCoefficients>, Bf16Update<cpu_optim::AdamCoefficients>,
    Int8Update<cpu_optim::AdamCoefficients>, Bf16Update<cpu_optim::SgdCoefficients>,
    Int8Update<cpu_optim::SgdCoefficients>, Bf16Update<cpu_optim::AdagradCoefficients>,
    Int8Update<cpu_optim::AdagradCoefficients>, Bf16Update<cpu_optim::LionCoefficients>,
    Int8Update<cpu_optim::LionCoefficients>, Bf16Update<cpu_optim::RmspropCoefficients>,
    Int8Update<cpu_optim::RmspropCoefficients>, AverageUpdate, GradientScans, GradientAddition,
    GradientWidening, MasterJoin, MasterSplit, TilesJoin, Embedding, TokenTableGradient,
    PositionTableGradient, LayerNorm, LayerNormInputGradient, ColumnGradients, Product,
    BiasEpilogue, GeluBackward, CrossEntropy, MeanLoss, Attention, AttentionQueryGradient,
    AttentionKeyGradients>();

}  // namespace

std::span<const char* const> kernel_names() noexcept {
    return names;
}

}  // namespace spillway::cuda
