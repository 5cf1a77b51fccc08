// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace spillway::engine {

/// Exit codes of the program (design section 8).
enum class ExitCode : int { done = 0, failed = 1, bad_usage = 2, interrupted = 130 };

[[nodiscard]] constexpr int as_int(ExitCode code) noexcept {
    return static_cast<int>(code);
}

/// What the user asked for cannot be: all problems found, one sentence each. Exit code 2.
class UsageError : public std::runtime_error {
  public:
    explicit UsageError(std::vector<std::string> problems)
        : std::runtime_error(join(problems)), problems_(std::move(problems)) {}
    explicit UsageError(std::string problem)
        : UsageError(std::vector<std::string>{std::move(problem)}) {}

    [[nodiscard]] const std::vector<std::string>& problems() const noexcept { return problems_; }

  private:
    static std::string join(const std::vector<std::string>& problems) {
        std::string all;
        for (const auto& problem : problems)
            all += all.empty() ? problem : "\n" + problem;
        return all;
    }

    std::vector<std::string> problems_;
};

}  // namespace spillway::engine
