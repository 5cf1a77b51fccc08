// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/settings/tuning.h"

namespace spillway::engine {

/// What a step is timed with.
enum class TuningScene {
    update,         ///< alone: what a step waits for when its passes are short
    beside_passes,  ///< while forward or backward computes on the run's threads
    weights,        ///< of a pass that fetches weights, without an update
};

/// One field and what it may be, ascending.
struct TuningLadder {
    std::uint64_t Tuning::*field;
    std::vector<std::uint64_t> rungs;
    TuningScene scene = TuningScene::update;  ///< in which it has to gain
};

/// Seconds of a step. None: such a step cannot be (it does not fit its memory). What a tuning steps
/// with is made when it is first asked for.
using TimedTuning = std::function<std::optional<double>(const Tuning&, TuningScene)>;

struct TuningSearch {
    Tuning defaults;  ///< every field that a ladder has is set, to one of its rungs or between
    std::vector<TuningLadder> ladders;  ///< in the order in which they are tried
    std::vector<TuningScene> scenes;    ///< in none of which the outcome may be slower
    double limit_s = 10;
    std::function<double()> now_s;         ///< a clock
    std::function<void()> forget = [] {};  ///< what was made: it is made anew when asked for
    std::function<bool()> stop = [] { return false; };
};

struct TuningOutcome {
    Tuning values;    ///< the defaults, unless others are clearly faster
    double gain = 1;  ///< a step by the defaults over one by the values, the most of any scene
    std::size_t compared = 0;  ///< tunings set beside another one
    bool whole = false;        ///< it came to its end within its time
};

/// A rung is taken only if it gains so much, by the median of tuning_pairs interleaved pairs, of
/// which all but one speak for it, and then of fresh_pairs more, each of which does. For those all
/// is made anew, in the other order: where memory and files happen to lie is worth more than many a
/// tuning.
inline constexpr double least_tuning_gain = 1.05;
inline constexpr std::size_t tuning_pairs = 5;
inline constexpr std::size_t fresh_pairs = 3;
/// And what is found as a whole is taken only if twice so many fresh pairs against the defaults, in
/// either order of making, say as much in one scene, each of them, and in none the median falls
/// below this.
inline constexpr double least_tuning_ratio = 0.98;

/// Coordinate descent from the defaults, rung by rung, ladder by ladder, round after round while
/// something gains. Time runs out between two steps; then the defaults are kept unless what was
/// found by then still passes the last comparison, for which time is kept back.
[[nodiscard]] TuningOutcome search_tuning(const TuningSearch& search, const TimedTuning& timed);

}  // namespace spillway::engine
