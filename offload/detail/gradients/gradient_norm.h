// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <stop_token>

#include "offload/detail/gradients/step_gradients.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/element_order.h"

namespace spillway::offload::detail {

struct GradientNorm {
    double norm = 0;              ///< global 2-norm; may be infinite or NaN
    std::uint64_t nonfinite = 0;  ///< elements
    TensorId first_nonfinite = 0;
};

/// Of a closed step. Each tensor's part of a tile is scanned in a fixed shape (gradient_scan.h);
/// parts are added in the global order, in double: the same bits for any number of threads. Throws
/// StepStopped within a tenth of a second or so of `stop`.
[[nodiscard]] GradientNorm gradient_norm(const ElementOrder& order, const StepGradients& gradients,
                                         UpdateThreads& threads, const std::stop_token& stop);

}  // namespace spillway::offload::detail
