// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/run_tuning.h"

#include <bit>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/measure/drive_choice.h"
#include "engine/measure/profile.h"
#include "engine/measure/tuning_search.h"
#include "engine/train/train_report.h"
#include "offload/element_order.h"

namespace spillway::engine {
namespace {

/// As it would be without any tuning.
TrainSettings bare(TrainSettings settings) {
    settings.tuning = {};
    return settings;
}

std::uint64_t traffic_of(const TrainPlan& plan) noexcept {
    return plan.offload.nvme_read_bytes_per_step + plan.offload.nvme_written_bytes_per_step;
}

/// Larger chunks and wider windows leave less memory to the state: a step moves more then.
bool costs_its_gain(const TrainPlan& tuned, const TrainPlan& usual) noexcept {
    return !same_work(tuned.shape, usual.shape) ||
           static_cast<double>(traffic_of(tuned)) >
               static_cast<double>(traffic_of(usual)) * least_tuning_gain;
}

bool is_tuned_drive(const std::filesystem::path& folder, std::span<const DriveSettings> drives) {
    return find_drive_settings(drives, file_system_identity(folder)) != nullptr;
}

/// Every field as the run has it.
Tuning used_by(const TrainSettings& settings, const TrainPlan& plan) {
    const auto windows = windows_of(settings.tuning);
    Tuning used{.chunk_bytes = plan.offload.chunk_tiles * offload::tile_elements * sizeof(float),
                .update_window = windows.update_slots,
                .weight_window = windows.weight_buffers,
                .update_threads = update_threads_of(settings.tuning, settings.threads)};
    if (const auto drives = choose_drive_io(settings); !drives.empty()) {
        used.io_block_bytes = drives.front().operation_bytes;
        used.io_depth = drives.front().depth;
    }
    return used;
}

/// Of what neither a flag nor a search set: `bench storage --tune` may have.
TuningSource source_of_rest(const TuningField& field, const TrainSettings& settings) {
    const bool of_drives =
        field.member == &Tuning::io_block_bytes || field.member == &Tuning::io_depth;
    if (!of_drives)
        return TuningSource::default_value;
    const auto folders = nvme_folders(settings.nvme);
    const auto path = profile_path(settings);
    if (folders.empty() || path.empty())
        return TuningSource::default_value;
    return is_tuned_drive(folders.front(), load_profiles(path).drives)
               ? TuningSource::profile
               : TuningSource::default_value;
}

RunTuning describe(const TrainSettings& settings, const TrainPlan& plan, const Tuning& flags,
                   const Tuning& profile) {
    RunTuning tuning{.used = used_by(settings, plan), .note = ""};
    for (std::size_t i = 0; i < tuning_fields.size(); ++i) {
        const auto& field = tuning_fields[i];
        tuning.sources[i] = flags.*field.member != 0     ? TuningSource::flag
                            : profile.*field.member != 0 ? TuningSource::profile
                                                         : source_of_rest(field, settings);
    }
    return tuning;
}

}  // namespace

std::string_view name_of(TuningSource source) noexcept {
    switch (source) {
        case TuningSource::profile:
            return "profile";
        case TuningSource::flag:
            return "flag";
        case TuningSource::default_value:
            break;
    }
    return "default";
}

bool same_work(const BatchShape& left, const BatchShape& right) noexcept {
    const bool same_inputs =
        left.lost_inputs == LostInputs::moved || left.input_places == right.input_places;
    return left.recompute == right.recompute && left.micro_batches == right.micro_batches &&
           left.lost_inputs == right.lost_inputs && same_inputs;
}

TuningKey tuning_key(const TrainSettings& settings, const std::string& device,
                     std::size_t host_bytes) {
    TuningKey key{.cpu = cpu_model_name(),
                  .isa = settings.isa,
                  .threads = settings.threads,
                  .device = device,
                  .file_system = {},
                  .drive_io = {},
                  .optimizer = settings.optimizer,
                  .state = settings.state,
                  .host_bytes = std::bit_floor(host_bytes)};
    for (const auto& folder : nvme_folders(settings.nvme))
        key.file_system += (key.file_system.empty() ? "" : " + ") + file_system_identity(folder);
    for (const auto& io : choose_drive_io(bare(settings)))
        key.drive_io += (key.drive_io.empty() ? "" : " + ") + drive_io_text(io);
    return key;
}

std::optional<StoredTuning> recall_tuning(const TrainSettings& settings, const TuningKey& key) {
    const auto path = profile_path(settings);
    if (settings.tune == "off" || path.empty())
        return std::nullopt;
    const auto stored = load_profiles(path);
    const auto* const found = find_tuning(stored.tunings, key);
    return found == nullptr ? std::nullopt : std::optional(*found);
}

TunedPlan plan_with_tuning(const ModelLayout& layout, TrainSettings settings,
                           const MemoryBudgets& budgets, const std::optional<StoredTuning>& found) {
    const auto plan = [&](const TrainSettings& with) {
        return plan_training(layout, with, with.threads, budgets, nvme_tier(with));
    };
    const auto flags = settings.tuning;
    auto usual = plan(settings);
    std::string note;
    if (found && found->values != Tuning{}) {
        auto tuned = settings;
        tuned.tuning = combined(flags, found->values);
        try {
            auto faster = plan(tuned);
            if (!costs_its_gain(faster, usual)) {
                auto tuning = describe(tuned, faster, flags, found->values);
                tuning.gain = found->gain;
                tuning.searched = true;
                return {std::move(tuned), std::move(faster), std::move(tuning)};
            }
            note = "the profile's tuning would leave too little memory to this run's state";
        } catch (const offload::PlanRefused&) {
            note = "the profile's tuning does not fit this run's memory";
        }
    }
    auto tuning = describe(settings, usual, flags, {});
    tuning.searched = found.has_value();
    tuning.note = std::move(note);
    return {std::move(settings), std::move(usual), std::move(tuning)};
}

nlohmann::ordered_json tuning_json(const RunTuning& tuning) {
    nlohmann::ordered_json all;
    for (std::size_t i = 0; i < tuning_fields.size(); ++i)
        all[std::string(tuning_fields[i].key)] = {{"value", tuning.used.*tuning_fields[i].member},
                                                  {"from", name_of(tuning.sources[i])}};
    all["gain"] = tuning.gain;
    all["searched"] = tuning.searched;
    all["note"] = tuning.note;
    return all;
}

std::string tuning_text(const RunTuning& tuning) {
    std::string text;
    for (std::size_t i = 0; i < tuning_fields.size(); ++i) {
        const auto& field = tuning_fields[i];
        const auto value = tuning.used.*field.member;
        if (value == 0)
            continue;
        const bool is_bytes =
            field.member == &Tuning::chunk_bytes || field.member == &Tuning::io_block_bytes;
        std::string name(field.option);
        for (auto& letter : name)
            letter = letter == '-' ? ' ' : letter;
        text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", name,
                            is_bytes ? human_bytes(value) : fmt::format("{}", value),
                            tuning.sources[i] == TuningSource::default_value
                                ? ""
                                : fmt::format(" ({})", name_of(tuning.sources[i])));
    }
    return text;
}

}  // namespace spillway::engine
