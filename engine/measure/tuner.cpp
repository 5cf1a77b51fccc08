// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/tuner.h"

#include <algorithm>
#include <chrono>

#include "engine/measure/drive_choice.h"
#include "engine/measure/tuning_bench.h"

namespace spillway::engine {
namespace {

constexpr std::uint64_t kib = std::uint64_t{1} << 10;
constexpr std::uint64_t mib = std::uint64_t{1} << 20;

std::vector<std::uint64_t> doublings(std::uint64_t from, std::uint64_t to) {
    std::vector<std::uint64_t> all;
    for (auto value = from; value <= to; value *= 2)
        all.push_back(value);
    return all;
}

/// Fewer than all: a share of them, or all but one.
std::vector<std::uint64_t> thread_counts(std::uint64_t threads) {
    std::vector<std::uint64_t> all{std::max<std::uint64_t>(threads / 4, 1),
                                   std::max<std::uint64_t>(threads / 2, 1),
                                   std::max<std::uint64_t>(threads * 3 / 4, 1),
                                   std::max<std::uint64_t>(threads - 1, 1), threads};
    std::ranges::sort(all);
    const auto [first, last] = std::ranges::unique(all);
    all.erase(first, last);
    return all;
}

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

std::vector<TuningLadder> tuning_ladders(const TunerRequest& request) {
    std::vector<TuningLadder> ladders{
        {.field = &Tuning::chunk_bytes, .rungs = doublings(64 * kib, 64 * mib)},
        {.field = &Tuning::update_window, .rungs = {2, 3, 4, 6, 8, 12, 16}}};
    if (request.passes != nullptr)
        ladders.push_back({.field = &Tuning::update_threads,
                           .rungs = thread_counts(request.settings.threads),
                           .scene = TuningScene::beside_passes});
    if (request.device != nullptr)
        ladders.push_back({.field = &Tuning::weight_window,
                           .rungs = {2, 3, 4, 6, 8, 12, 16},
                           .scene = TuningScene::weights});
    if (request.drives == TunedDrives::searched) {
        ladders.push_back(
            {.field = &Tuning::io_block_bytes, .rungs = doublings(256 * kib, 16 * mib)});
        ladders.push_back({.field = &Tuning::io_depth, .rungs = doublings(4, 64)});
    }
    return ladders;
}

std::optional<TuningOutcome> tune(const TunerRequest& request) {
    const auto began_s = now_s();
    auto defaults = request.defaults;
    if (request.drives == TunedDrives::left_alone)  // each as it was found best for it
        defaults.io_block_bytes = defaults.io_depth = 0;
    TuningBench bench({.settings = request.settings,
                       .drive_io = choose_drive_io(request.settings),
                       .parameters = request.parameters,
                       .memory_bytes = request.memory_bytes,
                       .passes = request.passes,
                       .device = request.device,
                       .compute = request.compute,
                       .device_bytes = request.device_bytes,
                       .step_s = request.limit_s / 200},
                      defaults);
    if (!bench.is_possible())
        return std::nullopt;
    auto searched = request;
    if (searched.device != nullptr && !bench.step_s(defaults, TuningScene::weights))
        searched.device = nullptr;  // no room to measure it: the rest is searched for
    TuningSearch search{.defaults = defaults,
                        .ladders = tuning_ladders(searched),
                        .scenes = {TuningScene::update},
                        .limit_s = request.limit_s - (now_s() - began_s),
                        .now_s = now_s,
                        .forget = [&] { bench.forget(); },
                        .stop = request.stop};
    if (request.passes != nullptr)
        search.scenes.push_back(TuningScene::beside_passes);
    if (searched.device != nullptr)
        search.scenes.push_back(TuningScene::weights);
    return search_tuning(search,
                         [&](const Tuning& tuning, TuningScene scene) -> std::optional<double> {
                             const auto traffic = request.traffic_ratio(tuning);
                             if (!(traffic > 0 && traffic <= least_tuning_gain) ||
                                 (searched.device != nullptr && !bench.can_fetch(tuning)))
                                 return std::nullopt;
                             const auto seconds = bench.step_s(tuning, scene);
                             return seconds ? std::optional(*seconds * traffic) : std::nullopt;
                         });
}

Tuning differences(const Tuning& found, const Tuning& defaults) noexcept {
    auto changed = found;
    for (const auto& field : tuning_fields) {
        if (found.*field.member == defaults.*field.member)
            changed.*field.member = 0;
    }
    // The plan's rule might take other chunks beside other windows.
    if (changed.update_window != 0 || changed.weight_window != 0)
        changed.chunk_bytes = found.chunk_bytes;
    return changed;
}

}  // namespace spillway::engine
