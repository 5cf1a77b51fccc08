// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_step_tune.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cpu_optim/isa.h"
#include "engine/cli/verbs/bench_step_model.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/drive_choice.h"
#include "engine/measure/tuner.h"
#include "engine/plan/first_use.h"
#include "engine/plan/run_tuning.h"
#include "offload/element_order.h"
#include "offload/tensor_plan.h"

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

/// Over that by the defaults; 0: it does not fit.
double traffic_ratio(const StepBenchOptions& options, const Tuning& tuning,
                     const Tuning& defaults) {
    const auto usual = step_bench_traffic(options, defaults);
    const auto moved = step_bench_traffic(options, tuning);
    if (!usual || !moved)
        return 0;
    return *usual == 0 ? 1 : static_cast<double>(*moved) / static_cast<double>(*usual);
}

}  // namespace

std::optional<std::uint64_t> step_bench_traffic(const StepBenchOptions& options,
                                                const Tuning& tuning) {
    std::vector<offload::TensorSpec> specs;
    for (std::uint64_t first = 0; first < options.elements; first += bench_tensor_elements)
        specs.push_back({fmt::format("{}", specs.size()),
                         {std::min(bench_tensor_elements, options.elements - first)}});
    const offload::ElementOrder order(specs);
    const std::vector types(specs.size(), offload::ParameterType::bf16);
    const auto needs = options.hyper.needs();
    const bool has_drives = !options.nvme.empty();
    try {
        const auto plan = make_tensor_plan(
            order, types,
            {.state_planes = needs.state_planes,
             .passes = needs.passes,
             .state = options.state,
             .host_bytes = options.host_bytes,
             .nvme = has_drives ? offload::NvmeTier::present : offload::NvmeTier::absent,
             .drives = std::max<std::size_t>(options.nvme.size(), 1),
             .commits = has_drives && options.durability == offload::Durability::on
                            ? offload::Commits::possible
                            : offload::Commits::never,
             .chunk_bytes = tuning.chunk_bytes,
             .windows = windows_of(tuning)});
        return plan.update.nvme_read_bytes_per_step + plan.update.nvme_written_bytes_per_step;
    } catch (const offload::PlanRefused&) {
        return std::nullopt;
    }
}

std::optional<StoredTuning> tune_step_bench(TrainSettings settings, double limit_s,
                                            StepBenchOptions& options, Console& console) {
    settings.threads = static_cast<std::uint32_t>(options.threads);
    settings.isa = cpu_optim::isa_name(options.isa);
    const auto defaults = defaults_of(options);
    ComputePool pool(options.threads, options.isa);
    console.line(
        fmt::format("tuning: up to {:.3g} s for faster chunks, windows, I/O and threads", limit_s));
    const auto outcome =
        tune({.settings = settings,
              .defaults = defaults,
              .drives = tuned_drives(settings),
              .parameters = options.elements,
              .memory_bytes = options.host_bytes,
              .passes = &pool,
              .traffic_ratio =
                  [&](const Tuning& tuning) { return traffic_ratio(options, tuning, defaults); },
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
