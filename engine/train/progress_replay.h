// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace spillway::engine {

/// The progress that a run with a time budget logged at each of its steps: used again, step by
/// step, it gives the same weights (P1), whatever the clock says.
class ProgressReplay {
  public:
    /// Reads the log of a run: lines of JSON with `iteration` (1, 2, ...) and `progress` (in [0,
    /// 1], never falling). A last line without an end, as a killed run leaves it, is not counted.
    /// Throws std::runtime_error that names the file, the line and what is wrong with it.
    explicit ProgressReplay(const std::filesystem::path& log);

    /// Steps in the log.
    [[nodiscard]] std::uint64_t steps() const noexcept { return progress_.size(); }
    /// What step `iteration`, from 0, used. Throws std::out_of_range past the last, naming both.
    [[nodiscard]] double progress(std::uint64_t iteration) const;

  private:
    std::vector<double> progress_;
};

}  // namespace spillway::engine
