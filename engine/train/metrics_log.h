// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>

namespace spillway::engine {

/// One step as `metrics.jsonl` tells it.
struct StepMetrics {
    std::uint64_t iteration = 0;  ///< 1 for the first step
    std::uint64_t update = 0;     ///< updates applied after it
    double loss = 0;              ///< mean of the step's tokens, nats; null where not finite
    double learning_rate = 0;
    double gradient_norm = 0;  ///< before clipping; null where not finite
    bool skipped = false;
    double tokens_per_s = 0;
    double step_s = 0;
    double elapsed_s = 0;            ///< over all sessions of the run
    std::optional<double> progress;  ///< of the budget, that the schedule used; with --budget only
    std::optional<double> evaluation_loss;
    std::optional<double> averaged_loss = std::nullopt;  ///< of the averaged weights
};

/// How far a run has come.
struct LoggedEnd {
    std::uint64_t iteration = 0;
    double elapsed_s = 0;
};
/// By the last whole line of the log in `folder`, which may tell of steps behind the last commit;
/// zeros where there is none.
[[nodiscard]] LoggedEnd logged_end(const std::filesystem::path& folder);

/// OUT/metrics.jsonl: one JSON object a line, in order of the iterations. Not thread-safe.
class MetricsLog {
  public:
    static constexpr const char* file_name = "metrics.jsonl";

    /// Keeps the lines of `folder`'s log up to `iteration` (0: none) and drops what is behind:
    /// later steps, and a line that a crash cut. Throws std::system_error naming the path.
    MetricsLog(const std::filesystem::path& folder, std::uint64_t iteration);

    /// Appends a line and hands it to the system. Throws std::system_error naming the path.
    void append(const StepMetrics& metrics);

  private:
    std::filesystem::path path_;
    std::ofstream file_;
};

}  // namespace spillway::engine
