// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "engine/model/gpt2_step.h"
#include "engine/plan/bound.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/run_tuning.h"
#include "engine/settings/train_settings.h"
#include "offload/offload_engine.h"
#include "offload/relocation.h"
#include "offload/step_trace.h"

namespace spillway::engine {

/// Where a run stands: what a commit keeps beside the tensors.
struct RunProgress {
    std::uint64_t iteration = 0;
    std::uint64_t tokens = 0;
    std::uint64_t skipped_steps = 0;
    std::uint64_t consecutive_skips = 0;
    double elapsed_s = 0;  ///< of all sessions: what a budget has spent
    std::optional<double> first_loss;
    std::optional<double> last_loss;
};
/// As JSON, the text a commit keeps.
[[nodiscard]] std::string to_client_state(const RunProgress& progress);
/// Throws std::runtime_error saying what is wrong.
[[nodiscard]] RunProgress parse_client_state(const std::string& text);

/// What commits took beside the steps' own traffic; the one that a new run begins with does not
/// count.
struct CommitCost {
    std::uint64_t commits = 0;
    std::uint64_t bytes = 0;
    double wall_s = 0;     ///< from the update's end to the record's flush
    double write_s = 0;    ///< of it: planes in host memory being written
    double flush_s = 0;    ///< of it: data, table and record being flushed
    double exposed_s = 0;  ///< of it: nothing else went on
};
/// Between two moments of a run.
[[nodiscard]] CommitCost commit_cost(const offload::OffloadStatistics& from,
                                     const offload::OffloadStatistics& to);

/// Most bytes taken, against what was allowed.
struct PeakMemory {
    std::size_t device_bytes = 0;
    std::size_t host_bytes = 0;      ///< by the ledgers: memory manager and trainer
    std::size_t overhead_bytes = 0;  ///< resident before a budget was touched: code, libraries
    std::size_t rss_bytes = 0;       ///< as the kernel saw it
};

/// Everything a run has to tell at its end.
struct TrainResult {
    TrainSettings settings;  ///< as used, with what was chosen filled in
    TrainPlan plan;
    MemoryBudgets budgets;
    RunTuning tuning = {};
    std::string device;                     ///< all of `devices`
    std::vector<std::string> devices = {};  ///< by rank
    std::string isa;
    std::string io_backend;
    std::uint64_t parameters = 0;

    RunProgress progress;
    std::uint64_t session_steps = 0;  ///< of this process
    double wall_s = 0;                ///< of this process, first step to last write
    double tokens_per_s = 0;
    std::optional<double> evaluation_loss;
    std::optional<double> averaged_loss = std::nullopt;  ///< of the averaged weights
    std::uint64_t updates = 0;
    std::optional<std::uint64_t> resumed_from_step;
    bool interrupted = false;
    std::optional<offload::Relocation>
        moved;  ///< the state, to other drives, before the first step

    PassTimes phases;                    ///< summed over steps
    offload::OffloadStatistics offload;  ///< of this process
    CommitCost commit;                   ///< of the steps and the commit at their end
    cuda::DeviceStatistics device_work;  ///< of the steps
    PeakMemory peak;
    std::optional<StepBound> bound;  ///< none: not probed
    std::optional<double> attained;
    std::uint64_t weights_xxh3 = 0;
    std::optional<std::uint64_t> average_xxh3 = std::nullopt;   ///< none: there is no average
    std::optional<offload::TraceSummary> trace = std::nullopt;  ///< none: not asked for
};

}  // namespace spillway::engine
