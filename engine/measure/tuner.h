// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cuda/device.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/tuning_search.h"
#include "engine/settings/train_settings.h"

namespace spillway::engine {

/// Whether the drives' block and depth are searched for too: `bench storage --tune` takes longer
/// and knows better.
enum class TunedDrives { searched, left_alone };

struct TunerRequest {
    const TrainSettings& settings;  ///< resolved, with drives and nothing of its tuning set
    Tuning defaults;                ///< every field set, as the run has it without a search
    TunedDrives drives = TunedDrives::searched;
    std::uint64_t parameters = 0;   ///< of the run
    std::size_t memory_bytes = 0;   ///< for all that is allocated meanwhile
    ComputePool* passes = nullptr;  ///< of the run's passes; null: they are made elsewhere
    /// To which weights come from drives, and a stream of it; null: none do.
    cuda::Device* device = nullptr;
    cuda::Stream* compute = nullptr;
    std::size_t device_bytes = 0;  ///< for all that is allocated there meanwhile
    /// A step's traffic by a tuning over that by the defaults; 0: it does not fit the run. What
    /// moves more than least_tuning_gain times as much is not taken: no plan would.
    std::function<double(const Tuning&)> traffic_ratio;
    double limit_s = 10;
    std::function<bool()> stop = [] { return false; };
};

/// The ladders that a search climbs, from values around the defaults.
[[nodiscard]] std::vector<TuningLadder> tuning_ladders(const TunerRequest& request);

/// Searches on the run's own drives (TuningBench). None: there is no room for it in memory or on
/// the drives, or the state is so small that it passes through none. Throws std::system_error on
/// I/O errors.
[[nodiscard]] std::optional<TuningOutcome> tune(const TunerRequest& request);

/// Of `found`, what is not as in `defaults`; the rest 0.
[[nodiscard]] Tuning differences(const Tuning& found, const Tuning& defaults) noexcept;

}  // namespace spillway::engine
