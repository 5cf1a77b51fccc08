// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cli/verbs/bench_step_run.h"
#include "nvme/huge_page_arena.h"
#include "offload/tensor_optimizer.h"

namespace spillway::engine {

/// Of the tensors that `bench step` updates; the last may have fewer.
inline constexpr std::uint64_t bench_tensor_elements = std::uint64_t{4} << 20;
/// Tensors' worth of gradients, used in turn: together more than a processor's caches hold.
inline constexpr std::uint64_t bench_gradient_tensors = 16;

/// The client's memory: bf16 weights and gradients, made by hashes of the element's number.
class StepBenchModel {
  public:
    explicit StepBenchModel(std::uint64_t elements);

    [[nodiscard]] std::vector<offload::Parameter> parameters() const;
    [[nodiscard]] offload::Gradient gradient(offload::TensorId tensor) const;

  private:
    [[nodiscard]] std::uint16_t* weights() const {
        return reinterpret_cast<std::uint16_t*>(arena_.bytes().data());
    }
    [[nodiscard]] std::uint16_t* gradients() const { return weights() + elements_; }

    std::uint64_t elements_;
    std::uint64_t gradient_elements_;
    nvme::HugePageArena arena_;
};

/// Memory that verify_step_bench() takes beside the model.
[[nodiscard]] std::size_t replay_bytes(const StepBenchOptions& options);

/// Compares a sample of masters, spread over all tensors, after so many steps from the model's
/// first values: fp32 state with the scalar reference element by element, lossy state with the
/// scalar kernels block by block, optimizers of whole tensors two tensors whole. Returns how many
/// elements agreed in every bit; throws std::runtime_error naming the first that does not.
[[nodiscard]] std::uint64_t verify_step_bench(const StepBenchOptions& options,
                                              offload::TensorOptimizer& optimizer,
                                              std::uint64_t updates);

}  // namespace spillway::engine
