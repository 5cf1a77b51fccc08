// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "offload/tensor_optimizer.h"
#include "tests/offload/whole_factored.h"
#include "tests/offload/whole_layer.h"
#include "tests/offload/whole_state.h"

namespace spillway::testing {

/// Tensors of a client: their values, and gradients that depend on (step, tensor, element) alone.
struct ClientTensorValues {
    std::string name;
    std::vector<std::uint64_t> shape;
    offload::ParameterType type = offload::ParameterType::fp32;
    std::uint32_t group = 0;
    cpu_optim::GradientType gradient_type = cpu_optim::GradientType::fp32;
    /// A gradient comes at iterations that this divides.
    std::uint64_t gradient_every = 1;
    std::vector<float> fp32;
    std::vector<std::uint16_t> bf16;

    [[nodiscard]] std::size_t elements() const noexcept;
    [[nodiscard]] void* data() noexcept;
    [[nodiscard]] bool has_gradient(std::uint64_t iteration) const noexcept {
        return iteration % gradient_every == 0;
    }
};

/// Sizes around tiles and alignment edges, both types, an empty one, one without regular gradients.
[[nodiscard]] std::vector<ClientTensorValues> client_model();
/// Matrices of all kinds: wider than a tile, narrow, many small ones in a tensor; and the former.
[[nodiscard]] std::vector<ClientTensorValues> matrix_model();
[[nodiscard]] std::vector<offload::Parameter> parameters_of(std::vector<ClientTensorValues>& model);
/// Bytes of the gradient in its own type; signs change, sizes span many powers of ten.
[[nodiscard]] std::vector<std::byte> gradient_bytes_of(const ClientTensorValues& tensor,
                                                       std::size_t index, std::uint64_t iteration);
/// All values as bits, tensor by tensor.
[[nodiscard]] std::vector<std::uint32_t> bits_of(const std::vector<ClientTensorValues>& model);

/// Of lossy state, in the reference and in tests' optimizers.
inline constexpr std::uint64_t client_rounding_seed = 5;

/// Whole arrays in memory, the scalar reference.
class ReferenceOptimizer {
  public:
    ReferenceOptimizer(std::vector<ClientTensorValues>& model,
                       std::vector<cpu_optim::HyperParameters> groups,
                       cpu_optim::StateFormat format = cpu_optim::StateFormat::fp32);
    ReferenceOptimizer(std::vector<ClientTensorValues>& model,
                       std::vector<cpu_optim::LayerwiseHyperParameters> groups,
                       cpu_optim::StateFormat format = cpu_optim::StateFormat::fp32);
    ReferenceOptimizer(std::vector<ClientTensorValues>& model,
                       std::vector<cpu_optim::AdafactorHyperParameters> groups);
    /// One step over the gradients of `iteration`.
    void step(std::uint64_t iteration, double gradient_scale);
    void set_groups(std::vector<cpu_optim::HyperParameters> groups) { groups_ = std::move(groups); }
    [[nodiscard]] std::vector<float> state(std::size_t tensor, std::size_t plane) const {
        return state_[tensor].values(
            moment_kinds(
                groups_[model_[tensor].group])[std::min(plane, cpu_optim::most_lossy_planes - 1)],
            plane);
    }
    /// Of an optimizer of whole tensors.
    [[nodiscard]] std::vector<float> layer_state(std::size_t tensor, std::size_t plane) const {
        return layers_[tensor].plane(layerwise_[model_[tensor].group], plane);
    }
    [[nodiscard]] const std::vector<float>& factors(std::size_t tensor) const {
        return factored_[tensor].values();
    }
    [[nodiscard]] const std::vector<float>& masters(std::size_t tensor) const {
        return masters_[tensor];
    }

  private:
    void copy_weights();
    [[nodiscard]] offload::ElementOrder order() const;
    void update(std::size_t index, const std::vector<float>& gradients, double gradient_scale);

    std::vector<ClientTensorValues>& model_;
    std::vector<cpu_optim::HyperParameters> groups_;
    std::vector<cpu_optim::LayerwiseHyperParameters> layerwise_;  ///< or these
    std::vector<cpu_optim::AdafactorHyperParameters> adafactor_;  ///< or these
    std::vector<WholeLayer> layers_;
    std::vector<WholeFactored> factored_;
    std::vector<std::uint64_t> first_in_order_;
    std::vector<std::vector<float>> masters_;
    std::vector<WholeState> state_;
    std::vector<std::uint64_t> steps_;
};

}  // namespace spillway::testing
