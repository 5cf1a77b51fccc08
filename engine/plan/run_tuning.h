// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/measure/stored_tuning.h"
#include "engine/plan/memory_plan.h"
#include "engine/settings/train_settings.h"

namespace spillway::engine {

enum class TuningSource { default_value, profile, flag };
[[nodiscard]] std::string_view name_of(TuningSource source) noexcept;

/// What a run goes by, and who said so. By tuning_fields' order.
struct RunTuning {
    Tuning used;  ///< every field; 0: there is no such thing in this run
    std::array<TuningSource, tuning_fields.size()> sources{};
    double gain = 1;        ///< of the profile's values over the defaults, as measured
    bool searched = false;  ///< the profile tells of a search for runs like this one
    std::string note;       ///< why the profile's values are not used; "" if they are, or none are
};

/// Of resolved settings; `device`: its identity; `host_bytes`: the run's whole budget.
[[nodiscard]] TuningKey tuning_key(const TrainSettings& settings, const std::string& device,
                                   std::size_t host_bytes);

/// What the profile of the settings has for `key`; none with `--tune off`.
[[nodiscard]] std::optional<StoredTuning> recall_tuning(const TrainSettings& settings,
                                                        const TuningKey& key);

/// Whether passes of both shapes do the same work: another one makes more of it again, or does it
/// in smaller parts.
[[nodiscard]] bool same_work(const BatchShape& left, const BatchShape& right) noexcept;

struct TunedPlan {
    TrainSettings settings;  ///< with the values taken filled in
    TrainPlan plan;
    RunTuning tuning;
};
/// The plan of settings whose flags stand, with what was found beside them; without it where it
/// does not fit the budgets, or would make more traffic than it gained. Throws as plan_training().
[[nodiscard]] TunedPlan plan_with_tuning(const ModelLayout& layout, TrainSettings settings,
                                         const MemoryBudgets& budgets,
                                         const std::optional<StoredTuning>& found);

[[nodiscard]] nlohmann::ordered_json tuning_json(const RunTuning& tuning);
/// "chunk 4.00 MiB, update window 4 (profile), ...".
[[nodiscard]] std::string tuning_text(const RunTuning& tuning);

}  // namespace spillway::engine
