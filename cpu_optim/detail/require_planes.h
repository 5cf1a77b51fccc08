// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string_view>

#include "cpu_optim/elementwise.h"

namespace spillway::cpu_optim::detail {

/// Throws std::invalid_argument in the name of `kernel` unless either `master` is set, or `weight`
/// and `residue` are.
void require_masters(std::string_view kernel, const void* master, const void* weight,
                     const void* residue);

/// The same of the first `planes` planes of state.
void require_state(std::string_view kernel, const ElementwiseRun& run, std::size_t planes);
/// The same of the gradient.
void require_gradient(std::string_view kernel, const void* gradient);

}  // namespace spillway::cpu_optim::detail
