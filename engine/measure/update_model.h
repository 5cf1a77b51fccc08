// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nvme/huge_page_arena.h"
#include "offload/tensor_optimizer.h"

namespace spillway::engine {

/// Weights and gradients in a client's memory, for updates that are only measured: bf16, and fp32
/// as passes leave them.
class UpdateModel {
  public:
    /// Of its tensors; the last may have fewer.
    static constexpr std::uint64_t tensor_elements = std::uint64_t{1} << 20;

    /// With gradients of so many elements, whole tensors or all, which the tensors use in turn.
    UpdateModel(std::uint64_t elements, std::uint64_t gradient_elements);

    [[nodiscard]] static std::size_t memory_bytes(std::uint64_t elements,
                                                  std::uint64_t gradient_elements) noexcept;
    [[nodiscard]] std::uint64_t elements() const noexcept { return elements_; }
    [[nodiscard]] std::vector<offload::Parameter> parameters() const;
    [[nodiscard]] offload::Gradient gradient(offload::TensorId tensor) const;

  private:
    [[nodiscard]] std::uint16_t* weights() const;
    [[nodiscard]] float* gradients() const;

    std::uint64_t elements_;
    std::uint64_t gradient_elements_;
    nvme::HugePageArena weights_;
    nvme::HugePageArena gradients_;
};

}  // namespace spillway::engine
