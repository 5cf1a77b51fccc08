// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/device.h"
#include "engine/model/gpt2_config.h"
#include "engine/model/parameter_stream.h"

namespace spillway::engine {

/// Weights and gradients in plain device memory, all resident: what a pass costs without
/// offloading, and a look at every gradient. Not thread-safe. Units are not checked: hand it valid
/// ones.
class StaticParameterStream final : public ParameterStream {
  public:
    enum class Blocks {
        separate,  ///< the whole model
        shared,  ///< all blocks use one place: the time of a large model in little memory, not its
                 ///< values
    };

    /// Throws cuda::OutOfDeviceMemory. Device and stream must outlive it.
    StaticParameterStream(cuda::Device& device, cuda::Stream& compute, const Gpt2Config& config,
                          Blocks blocks);
    ~StaticParameterStream() override;

    /// Exactly what the constructor allocates.
    [[nodiscard]] static std::size_t device_bytes(const Gpt2Config& config, Blocks blocks);

    /// Sets a tensor; blocks the host.
    void write_weights(offload::TensorId tensor, std::span<const float> values);
    /// Sets all tensors as gpt2_initial_values says; blocks the host.
    void initialise(std::uint64_t seed);
    /// The gradient of the last pass, contributions added up in order; blocks the host.
    void read_gradient(offload::TensorId tensor, std::span<float> values);

    [[nodiscard]] const float* acquire_weights(std::size_t unit) override;
    void release_weights(std::size_t unit) override;
    [[nodiscard]] float* acquire_gradient(std::size_t unit) override;
    void release_gradient(std::size_t unit) override;

  private:
    /// Elements from the start of a plane.
    [[nodiscard]] std::size_t tensor_at(offload::TensorId tensor) const;
    [[nodiscard]] float* gradients() const;
    [[nodiscard]] float* further_contribution() const;

    cuda::Stream& compute_;
    Gpt2Config config_;
    offload::ElementOrder order_;
    std::vector<offload::Unit> units_;
    std::vector<std::size_t> unit_at_;  ///< elements from the start of a plane
    std::size_t plane_elements_ = 0;
    std::size_t contribution_elements_ = 0;
    std::vector<std::uint32_t> contributions_;  ///< handed over in this pass, by unit
    cuda::DeviceBuffer buffer_;                 ///< weights, gradients, a further contribution
};

}  // namespace spillway::engine
