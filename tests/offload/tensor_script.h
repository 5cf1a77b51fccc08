// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/offload/tensor_model.h"

namespace spillway::testing {

/// All that a commit must bring back.
struct ClientSnapshot {
    std::vector<std::uint32_t> weights;
    std::vector<std::uint32_t> state;  ///< bits, plane by plane, tensor by tensor
    std::vector<std::int16_t> residues;
    std::vector<std::uint64_t> steps;
    bool operator==(const ClientSnapshot&) const = default;
};
[[nodiscard]] ClientSnapshot snapshot(offload::TensorOptimizer& optimizer,
                                      const std::vector<ClientTensorValues>& model);

/// A client's run in which state, residues, counters and weights are edited between steps, and some
/// tensors have no gradient in some steps. What it leaves depends on the iteration alone.
class TensorScript {
  public:
    static constexpr std::uint64_t iterations = 5;

    TensorScript();

    /// Values before the first iteration.
    [[nodiscard]] const std::vector<ClientTensorValues>& start() const noexcept { return start_; }
    [[nodiscard]] static std::vector<cpu_optim::HyperParameters> groups();
    /// In host memory, without commits: what stands after each iteration, from 0.
    [[nodiscard]] std::vector<ClientSnapshot> uninterrupted() const;

    /// The step of one iteration, then the edits that follow it.
    void iterate(offload::TensorOptimizer& optimizer, std::vector<ClientTensorValues>& model,
                 std::uint64_t iteration) const;
    /// The gradient of one tensor, or of all, if there is one in that iteration.
    void give_gradient(offload::TensorOptimizer& optimizer, offload::TensorId tensor,
                       std::uint64_t iteration) const;
    void give_gradients(offload::TensorOptimizer& optimizer, std::uint64_t iteration) const;

    [[nodiscard]] static bool commits_after(std::uint64_t iteration) noexcept {
        return iteration != 2 && iteration != iterations;
    }
    [[nodiscard]] static offload::TensorCommit commit_after(std::uint64_t iteration);

    struct Outcome {
        std::optional<std::uint64_t> durable;  ///< the newest commit known to be so, by iteration
        std::string error;                     ///< empty: the run came to its end
    };
    /// Iterations `first` (0: only its commit) to the last, with commits where they belong, until
    /// an error.
    [[nodiscard]] Outcome run(offload::TensorOptimizer& optimizer,
                              std::vector<ClientTensorValues>& model, std::uint64_t first) const;

  private:
    void edit(offload::TensorOptimizer& optimizer, std::vector<ClientTensorValues>& model,
              std::uint64_t iteration) const;

    std::vector<ClientTensorValues> start_;
    std::vector<std::vector<std::vector<std::byte>>> gradients_;  ///< by iteration, by tensor
};

}  // namespace spillway::testing
