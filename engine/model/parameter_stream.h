// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "engine/compute/token_rows.h"

namespace spillway::engine {

/// Where a model's pass gets its weights and leaves its gradients, unit by unit (offload::Unit).
/// All pointers are device pointers, to be used by work on the compute stream only: an acquire
/// makes that stream wait until the data is there, a release lets the memory go once the work
/// queued so far is done. Called from the one thread that drives the pass.
class ParameterStream {
  public:
    virtual ~ParameterStream() = default;

    /// fp32 weights of `unit`, from its first tensor on, in the global element order. Units must be
    /// acquired in the order announced for the pass; one may be acquired while others are held.
    [[nodiscard]] virtual const float* acquire_weights(std::size_t unit) = 0;
    virtual void release_weights(std::size_t unit) = 0;

    /// Room for one contribution to the gradient of `unit`, laid out like its weights; what it
    /// holds says first_contribution(). Every element of every tensor must be written; the padding
    /// between tensors need not.
    [[nodiscard]] virtual float* acquire_gradient(std::size_t unit) = 0;
    /// Hands the contribution over.
    virtual void release_gradient(std::size_t unit) = 0;
    /// Whether the room of a gradient holds nothing yet, or the sum over a step's earlier
    /// sequences, to which the pass adds its own.
    [[nodiscard]] virtual Contribution first_contribution() const noexcept {
        return Contribution::first;
    }
};

}  // namespace spillway::engine
