// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/nadam_momentum.h"

#include "cpu_optim/detail/nadam_momentum.h"

namespace spillway::cpu_optim {

double nadam_momentum_product(double beta1, double momentum_decay, std::uint64_t step) {
    return detail::nadam_momentum_product(beta1, momentum_decay, step);
}

}  // namespace spillway::cpu_optim
