// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>

namespace spillway::cpu_optim {

/// The product of NAdam's mu over the steps 1 to `step`, as its updates take it (1 at step 0): what
/// torch keeps as mu_product. `beta1` and `momentum_decay` as check() of elementwise.h allows them.
[[nodiscard]] double nadam_momentum_product(double beta1, double momentum_decay,
                                            std::uint64_t step);

}  // namespace spillway::cpu_optim
