// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "cpu_optim/isa.h"

namespace spillway::testing {

/// Every instruction set that runs here, the scalar one, which is slow, in one of six places.
[[nodiscard]] inline std::vector<cpu_optim::Isa> mostly_fast_isas() {
    const auto supported = cpu_optim::supported_isas();
    std::vector<cpu_optim::Isa> isas(6, cpu_optim::best_isa());
    for (std::size_t i = 0; i < supported.size(); ++i)
        isas[i] = supported[i];
    return isas;
}

/// Random combinations: of every column each value comes equally often, and what it meets is drawn.
/// The seed is drawn too and printed; SPILLWAY_MATRIX_SEED sets it, and SPILLWAY_MATRIX_CASE runs
/// one combination of it alone. Columns must be drawn in the same order each time.
class Combinations {
  public:
    Combinations(const char* name, std::size_t count)
        : count_(count),
          seed_(from_environment("SPILLWAY_MATRIX_SEED").value_or(std::random_device{}())),
          random_(seed_) {
        std::printf("%s: %zu combinations, SPILLWAY_MATRIX_SEED=%llu\n", name, count,
                    static_cast<unsigned long long>(seed_));
    }

    /// One value a combination.
    template <typename Value>
    [[nodiscard]] std::vector<Value> column(const std::vector<Value>& values) {
        std::vector<Value> drawn;
        for (std::size_t i = 0; i < count_; ++i)
            drawn.push_back(values[i % values.size()]);
        for (std::size_t i = count_; i > 1; --i)
            std::swap(drawn[i - 1], drawn[random_() % i]);
        return drawn;
    }

    /// The combinations to run.
    [[nodiscard]] std::vector<std::size_t> chosen() const {
        if (const auto only = from_environment("SPILLWAY_MATRIX_CASE"))
            return {static_cast<std::size_t>(*only) % count_};
        std::vector<std::size_t> all(count_);
        std::iota(all.begin(), all.end(), std::size_t{0});
        return all;
    }

    /// What to set so that combination `index` runs alone.
    [[nodiscard]] std::string to_repeat(std::size_t index) const {
        return fmt::format("SPILLWAY_MATRIX_SEED={} SPILLWAY_MATRIX_CASE={}", seed_, index);
    }

  private:
    static std::optional<std::uint64_t> from_environment(const char* variable) {
        const char* const text = std::getenv(variable);
        return text == nullptr ? std::nullopt
                               : std::optional<std::uint64_t>(std::strtoull(text, nullptr, 10));
    }

    std::size_t count_;
    std::uint64_t seed_;
    std::mt19937_64 random_;
};

/// Checks that what should change a result does, so that one result for all placements of a class
/// means something. `expected`: the result of each class, by name.
template <typename Result>
void check_classes_differ(const std::map<std::string, Result>& expected) {
    for (const auto& each : expected) {
        INFO(each.first);
        CHECK(std::ranges::count_if(
                  expected, [&](const auto& other) { return other.second == each.second; }) == 1);
    }
}

/// Checks `is_same(index)` for the combinations that are to run. One that fails or throws is told
/// as `text_of(index)`, with what runs it alone.
template <typename Text, typename Same>
void check_combinations(const Combinations& draw, const Text& text_of, const Same& is_same) {
    for (const auto index : draw.chosen()) {
        INFO(draw.to_repeat(index) << " is " << text_of(index));
        try {
            const bool same = is_same(index);
            CHECK(same);
        } catch (const std::exception& error) {
            FAIL_CHECK(error.what());
        }
    }
}

}  // namespace spillway::testing
