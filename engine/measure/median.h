// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

namespace spillway::engine {

/// Of at least one value; of an even number of them the mean of the middle two.
[[nodiscard]] inline double median(std::vector<double> values) {
    std::ranges::sort(values);
    const auto middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Of at least one value; of an even number of them the larger of the middle two.
[[nodiscard]] inline double upper_median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Seconds that `pass` takes: the upper median over `limit_s`, and at least so many times. One
/// before them warms up.
template <typename Pass>
[[nodiscard]] double median_pass_s(double limit_s, std::size_t least_passes, const Pass& pass) {
    using Clock = std::chrono::steady_clock;
    const auto seconds_since = [](Clock::time_point begin) {
        return std::chrono::duration<double>(Clock::now() - begin).count();
    };
    pass();
    std::vector<double> times;
    const auto start = Clock::now();
    while (times.size() < least_passes || seconds_since(start) < limit_s) {
        const auto begin = Clock::now();
        pass();
        times.push_back(seconds_since(begin));
    }
    return std::max(upper_median(std::move(times)), 1e-9);
}

}  // namespace spillway::engine
