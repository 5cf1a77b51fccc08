// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/device.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/tuning_search.h"
#include "engine/settings/train_settings.h"
#include "offload/io_options.h"

namespace spillway::engine {

struct TuningBenchRequest {
    const TrainSettings& settings;  ///< resolved: optimizer, state, threads, ISA and drives count
    std::vector<offload::DriveIo> drive_io;  ///< of each drive, where a tuning does not say
    std::uint64_t parameters = 0;            ///< of the run: no more are stepped over
    std::size_t memory_bytes = 0;            ///< for all that it allocates
    ComputePool* passes = nullptr;           ///< computes beside updates; null: nothing does here
    /// To which weights come, and a stream of it; null: none come from drives.
    cuda::Device* device = nullptr;
    cuda::Stream* compute = nullptr;
    std::size_t device_bytes = 0;  ///< for all that it allocates there
    double step_s = 0.1;           ///< that a step by the defaults is to take, about
};

/// Optimizer steps through the memory manager, with the settings' optimizer and format, on the
/// run's own drives: bf16 weights and one tensor's gradients in memory, all state on the drives, in
/// files without a name. Beside them passes that fetch weights from there. Makes what a tuning
/// needs when it is first asked for, and keeps the two that were asked for last.
class TuningBench {
  public:
    /// `defaults`: every field is set. Takes a second or so: steps are measured to find how many
    /// parameters last for step_s. Throws std::system_error on I/O errors.
    TuningBench(const TuningBenchRequest& request, const Tuning& defaults);
    ~TuningBench();
    TuningBench(const TuningBench&) = delete;
    TuningBench& operator=(const TuningBench&) = delete;

    /// Whether the memory and the drives have room for two tunings beside each other.
    [[nodiscard]] bool is_possible() const noexcept;
    /// Whether there is room for passes that fetch weights by it and by the defaults beside each
    /// other. Asked of a request with a device.
    [[nodiscard]] bool can_fetch(const Tuning& tuning) const;
    /// As TimedTuning. Of scene beside_passes: until step and computation are both over.
    [[nodiscard]] std::optional<double> step_s(const Tuning& tuning, TuningScene scene);
    /// What was made: it is made anew when asked for.
    void forget();
    [[nodiscard]] std::uint64_t elements() const noexcept;
    /// Most that was allocated at a time.
    [[nodiscard]] std::size_t peak_bytes() const noexcept;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::engine
