// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace spillway::engine {

/// Fewest insertions, removals, replacements and swaps of neighbours that turn `a` into `b`
/// (optimal string alignment: no part is edited twice).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`, the first of equals; "" if all differ in more than half of
/// their letters, or there are none.
[[nodiscard]] std::string nearest(std::string_view word, std::span<const std::string> candidates);

/// "; did you mean PREFIXname?", or "" where nothing is near.
[[nodiscard]] std::string suggestion(std::string_view word, std::span<const std::string> candidates,
                                     std::string_view prefix);

}  // namespace spillway::engine
