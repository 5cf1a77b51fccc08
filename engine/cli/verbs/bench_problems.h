// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace spillway::engine {

/// What is wrong with the options of a measurement, gathered so that all of it is told at once.
class BenchProblems {
  public:
    void add(std::string problem) { problems_.push_back(std::move(problem)); }
    /// Runs `check`; what it refuses is told with the option's name before it.
    template <class Check>
    void collect(const char* option, Check check) {
        try {
            check();
        } catch (const std::runtime_error& error) {
            add(fmt::format("--{}: {}", option, error.what()));
        } catch (const std::invalid_argument& error) {
            add(fmt::format("--{}: {}", option, error.what()));
        }
    }
    void check_threads(std::size_t threads);
    /// Whether the machine has them for so many elements.
    void check_memory(std::uint64_t elements, std::uint64_t needed_bytes);
    /// Throws UsageError.
    void throw_if_any() const;

  private:
    std::vector<std::string> problems_;
};

}  // namespace spillway::engine
