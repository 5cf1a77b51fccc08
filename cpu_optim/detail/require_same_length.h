// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <string_view>

namespace spillway::cpu_optim::detail {

/// Throws std::invalid_argument naming `kernel` and `span` if `found` elements are not the `needed`
/// ones.
void require_same_length(std::string_view kernel, std::string_view span, std::size_t found,
                         std::size_t needed);

}  // namespace spillway::cpu_optim::detail
