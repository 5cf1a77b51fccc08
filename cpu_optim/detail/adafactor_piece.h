// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cpu_optim/detail/elementwise_run.h"

namespace spillway::cpu_optim::detail {

/// Elements of which number i has a second moment of relative_row * variances[i]. Of a vector,
/// relative_row is 1, and the product is exact.
struct AdafactorPiece {
    RunPointers run;
    float relative_row;
    const float* variances;
};

}  // namespace spillway::cpu_optim::detail
