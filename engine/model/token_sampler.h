// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace spillway::engine {

struct SamplingOptions {
    double temperature = 1.0;  ///< 0: always the likeliest token
    std::uint32_t top_k = 0;   ///< draw among the likeliest so many; 0: among all
    std::uint64_t seed = 1;
};

/// Draws tokens from logits: softmax(logits / temperature), cut to the top k. The same options and
/// logits give the same tokens everywhere. Not thread-safe.
class TokenSampler {
  public:
    /// Throws std::invalid_argument on a temperature that is negative or not finite.
    explicit TokenSampler(SamplingOptions options);

    /// An index into `logits`; of equally likely ones the first counts as likelier. Throws
    /// std::runtime_error if there are none or one is not finite.
    [[nodiscard]] std::int32_t draw(std::span<const float> logits);

  private:
    SamplingOptions options_;
    std::mt19937_64 random_;  ///< its sequence is fixed by the standard
    std::vector<std::pair<double, std::int32_t>> candidates_;
};

}  // namespace spillway::engine
