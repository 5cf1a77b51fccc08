// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_step_tune.h"

#include <algorithm>
#include <ctime>
#include <string>

#include <fmt/format.h>

#include "cpu_optim/isa.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/drive_choice.h"
#include "engine/measure/tuner.h"
#include "engine/plan/first_use.h"
#include "engine/plan/run_tuning.h"
#include "offload/element_order.h"

namespace spillway::engine {
namespace {

/// As a run with that budget has it without a search.
Tuning defaults_of(const StepBenchOptions& options) {
    const auto& io = options.drive_io.front();
    const offload::Windows windows;
    return {.chunk_bytes = offload::usual_chunk_tiles(options.host_bytes, options.nvme.size()) *
                           offload::tile_elements * sizeof(float),
            .update_window = windows.update_slots,
            .weight_window = windows.weight_buffers,
            .io_block_bytes = io.operation_bytes,
            .io_depth = io.depth,
            .update_threads = options.threads};
}

void set(const Tuning& tuning, StepBenchOptions& options) {
    options.chunk_bytes = tuning.chunk_bytes;
    options.windows = windows_of(tuning);
    options.threads = update_threads_of(tuning, options.threads);
    for (auto& io : options.drive_io)
        io = drive_io_of(tuning, io);
}

/// Of a run on this device; what others compute on, a run finds for itself.
constexpr const char* device = "cpu";

}  // namespace

std::optional<StoredTuning> tune_step_bench(TrainSettings settings, double limit_s,
                                            StepBenchOptions& options, Console& console) {
    settings.threads = static_cast<std::uint32_t>(options.threads);
    settings.isa = cpu_optim::isa_name(options.isa);
    const auto defaults = defaults_of(options);
    ComputePool pool(options.threads, options.isa);
    console.line(
        fmt::format("tuning: up to {:.3g} s for faster chunks, windows, I/O and threads", limit_s));
    const auto outcome = tune({.settings = settings,
                               .defaults = defaults,
                               .drives = tuned_drives(settings),
                               .parameters = options.elements,
                               .memory_bytes = options.host_bytes,
                               .passes = &pool,
                               .traffic_ratio = [](const Tuning&) { return 1.0; },
                               .limit_s = limit_s,
                               .stop = options.stop});
    if (!outcome)
        console.line("tuning: none, since --host-mem and the state have no room for a search");
    if (!outcome || options.stop())
        return std::nullopt;
    const StoredTuning found{.key = tuning_key(settings, device, options.host_bytes),
                             .measured_unix_s = static_cast<std::int64_t>(std::time(nullptr)),
                             .values = differences(outcome->values, defaults),
                             .gain = outcome->gain};
    if (found.values != Tuning{})
        set(outcome->values, options);
    std::string text;
    for (const auto& field : tuning_fields) {
        if (const auto value = found.values.*field.member; value != 0)
            text += fmt::format("{}--{} {}", text.empty() ? "" : " ", field.option, value);
    }
    console.line(fmt::format(
        "tuning: {} ({} comparisons); {}",
        text.empty() ? "nothing is clearly faster than the defaults"
                     : fmt::format("{}: {:.2f} times as fast as the defaults", text, found.gain),
        outcome->compared, keep_tuning(profile_path(settings), found)));
    return found;
}

}  // namespace spillway::engine
