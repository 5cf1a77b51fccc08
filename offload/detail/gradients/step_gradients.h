// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu_optim/gradient_scan.h"
#include "offload/detail/threads/monitor.h"
#include "offload/element_order.h"

namespace spillway::offload::detail {

/// A gradient in the client's memory; null: none (yet).
struct GradientPlace {
    const void* data = nullptr;
    cpu_optim::GradientType type = cpu_optim::GradientType::fp32;
};

/// The gradients of one step: given from any thread, in any order, until it is closed. Thread-safe.
class StepGradients {
  public:
    StepGradients(Monitor& monitor, const ElementOrder& order)
        : monitor_(monitor), order_(order), places_(order.tensors().size()) {}

    /// False: the tensor has one already, or the step is closed.
    [[nodiscard]] bool give(TensorId tensor, GradientPlace place);
    /// No more come.
    void close();
    /// The step could not be taken: more may come.
    void reopen();
    [[nodiscard]] bool empty() const;
    void clear();

    /// Whether every tensor with elements in [first, last) has its gradient, or the step is closed.
    [[nodiscard]] bool are_there(TensorId first, TensorId last) const;
    /// Blocks until they are there. Throws the monitor's poison.
    void wait_for(TensorId first, TensorId last);
    /// Blocks until the step is closed. Throws the monitor's poison.
    void wait_closed();
    /// Of a closed step, or of a tensor that was waited for.
    [[nodiscard]] GradientPlace of(TensorId tensor) const noexcept { return places_[tensor]; }

  private:
    [[nodiscard]] bool are_there(const Monitor::Lock&, TensorId first, TensorId last) const;

    Monitor& monitor_;
    const ElementOrder& order_;
    std::vector<GradientPlace> places_;
    std::size_t given_ = 0;
    bool closed_ = false;
};

}  // namespace spillway::offload::detail
