// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::engine {

TokenSampler::TokenSampler(SamplingOptions options) : options_(options), random_(options.seed) {
    if (!std::isfinite(options.temperature) || options.temperature < 0)
        throw std::invalid_argument(fmt::format(
            "the temperature is {}; it must be a finite number from 0 up", options.temperature));
}

std::int32_t TokenSampler::draw(std::span<const float> logits) {
    candidates_.clear();
    for (const float logit : logits) {
        if (!std::isfinite(logit))
            throw std::runtime_error(fmt::format(
                "the model gives token {} a logit of {}: its weights are damaged or have diverged",
                candidates_.size(), logit));
        candidates_.emplace_back(logit, static_cast<std::int32_t>(candidates_.size()));
    }
    if (candidates_.empty())
        throw std::runtime_error("there are no tokens to draw from");
    const auto likelier = [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    };
    const auto keep = options_.top_k == 0
                          ? candidates_.size()
                          : std::min<std::size_t>(options_.top_k, candidates_.size());
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(keep),
                      candidates_.end(), likelier);
    candidates_.resize(keep);
    const auto best = candidates_.front();
    if (options_.temperature == 0)
        return best.second;
    double sum = 0;
    for (auto& candidate : candidates_) {
        candidate.first = std::exp((candidate.first - best.first) / options_.temperature);
        sum += candidate.first;
    }
    // 53 random bits: a double in [0, 1).
    double left = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
    for (const auto& [weight, token] : candidates_) {
        left -= weight;
        if (left < 0)
            return token;
    }
    return candidates_.back().second;  // rounding ate the last bit of the sum
}

}  // namespace spillway::engine
