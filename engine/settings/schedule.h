// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <string_view>

namespace spillway::engine {

/// How the learning rate falls after the warm-up, with x from 0 to 1 and f the part of the peak
/// left at the end:
///   constant  1
///   linear    1 - (1 - f) x
///   cosine    f + (1 - f) (1 + cos(pi x)) / 2      (Loshchilov & Hutter 2017, one period)
enum class ScheduleShape { constant, linear, cosine };

/// Throws std::invalid_argument that lists the names.
[[nodiscard]] ScheduleShape parse_schedule_shape(std::string_view name);
[[nodiscard]] std::string_view schedule_shape_name(ScheduleShape shape) noexcept;

struct ScheduleOptions {
    ScheduleShape shape = ScheduleShape::cosine;
    double peak = 0;                   ///< learning rate after the warm-up
    double final_part = 0;             ///< rate at the end as a part of the peak, 0 to 1
    std::uint64_t warmup_updates = 0;  ///< over which the rate rises linearly
};

/// The learning rate of an update: a pure function, the same bits for the same arguments.
class Schedule {
  public:
    /// Throws std::invalid_argument that names an option out of its range.
    explicit Schedule(const ScheduleOptions& options);

    /// For a run of `total_updates`: `update` counts from 0. The rate is
    ///   peak (update + 1) / warmup                     while update < warmup
    ///   peak shape((update - warmup) / (total - warmup))     from then on
    /// and stays at its end beyond the total. Throws std::invalid_argument if the warm-up is longer
    /// than the run.
    [[nodiscard]] double at_update(std::uint64_t update, std::uint64_t total_updates) const;

    /// For a run that follows the clock: `progress` in [0, 1] is the part of the budget used. The
    /// rate is peak shape(progress), times (update + 1) / warmup while update < warmup: how long
    /// the warm-up lasts is not known beforehand. Throws std::invalid_argument for other progress.
    [[nodiscard]] double at_progress(std::uint64_t update, double progress) const;

  private:
    [[nodiscard]] double warmup(std::uint64_t update) const noexcept;
    [[nodiscard]] double shape(double x) const noexcept;

    ScheduleOptions options_;
};

}  // namespace spillway::engine
