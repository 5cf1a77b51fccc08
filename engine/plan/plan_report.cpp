// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/plan_report.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/plan/memory_items_json.h"
#include "engine/settings/optimizer_choice.h"
#include "engine/train/run_record.h"
#include "engine/train/train_report.h"

namespace spillway::engine {
namespace {

using Json = nlohmann::ordered_json;
constexpr double day_s = 24 * 3600;

/// Where the bytes of one plane rest.
struct PlanePlacement {
    std::string_view name;
    std::uint64_t host_bytes = 0;
    std::uint64_t nvme_bytes = 0;
};

std::vector<PlanePlacement> placements(const PlannedRun& run) {
    const auto& plan = run.plan.offload;
    const auto tiles = run.layout.order.tiles();
    std::vector<PlanePlacement> list;
    for (const auto plane : plan.planes) {
        PlanePlacement place{.name = offload::plane_name(plane)};
        for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
            const auto bytes = plan.chunk_range(chunk, tiles).size() * offload::tile_bytes(plane);
            (plan.resident[offload::index_of(plane)][chunk] != 0 ? place.host_bytes
                                                                 : place.nvme_bytes) += bytes;
        }
        list.push_back(place);
    }
    if (update_timing(run.settings) == offload::UpdateTiming::as_completed)
        return list;
    PlanePlacement gradient{.name = "gradient"};
    for (std::uint64_t chunk = 0; chunk < plan.chunks; ++chunk) {
        const auto bytes = plan.chunk_range(chunk, tiles).size() * offload::gradient_tile_bytes;
        (plan.gradient_resident[chunk] != 0 ? gradient.host_bytes : gradient.nvme_bytes) += bytes;
    }
    list.push_back(gradient);
    return list;
}

Json tiers_json(const PlanReport& r) {
    const auto& plan = r.run.plan;
    Json tiers{{"device",
                {{"planned_bytes", plan.device_bytes()},
                 {"budget_bytes", r.run.budgets.device_bytes},
                 {"activation_bytes", plan.activation_bytes},
                 {"items", items_json(plan.device_items())}}},
               {"host",
                {{"planned_bytes", plan.host_bytes(r.run.budgets.device_kind)},
                 {"budget_bytes", r.run.budgets.host_bytes},
                 {"overhead_bytes", r.overhead_bytes},
                 {"free_bytes", r.available.bytes},
                 {"limited_by", r.available.limited_by},
                 {"items", items_json(plan.offload.host_items)}}},
               {"nvme",
                {{"planned_bytes", plan.offload.disk_bytes},
                 {"folder", r.drive_folder},
                 {"free_bytes", r.drive_available_bytes}}}};
    return tiers;
}

Json placement_json(const PlanReport& r) {
    auto list = Json::array();
    for (const auto& place : placements(r.run))
        list.push_back({{"plane", place.name},
                        {"host_bytes", place.host_bytes},
                        {"nvme_bytes", place.nvme_bytes}});
    return list;
}

double nvme_bytes_per_parameter(const PlanReport& r) {
    const auto& plan = r.run.plan.offload;
    return static_cast<double>(plan.nvme_read_bytes_per_step + plan.nvme_written_bytes_per_step) /
           static_cast<double>(r.run.layout.order.parameters());
}

Json traffic_json(const PlanReport& r) {
    const auto& plan = r.run.plan.offload;
    const bool link = r.run.budgets.device_kind == cuda::MemoryKind::device;
    return {{"nvme_read", plan.nvme_read_bytes_per_step},
            {"nvme_written", plan.nvme_written_bytes_per_step},
            {"nvme_weights_read", plan.nvme_weight_read_bytes_per_step},
            {"nvme_gradients", plan.nvme_gradient_bytes_per_step},
            {"nvme_layer_inputs", plan.nvme_activation_bytes_per_step},
            {"link_layer_inputs", link ? r.run.plan.moved_input_bytes() : 0},
            {"h2d", link ? r.run.plan.to_device_bytes_per_step() : 0},
            {"d2h", link ? r.run.plan.to_host_bytes_per_step() : 0},
            {"nvme_bytes_per_parameter", nvme_bytes_per_parameter(r)}};
}

Json prediction_json(const PlanReport& r) {
    const auto& p = *r.prediction;
    const auto& costs = *r.costs;
    return {
        {"step_s", p.seconds},
        {"tokens_per_s", static_cast<double>(tokens_per_step(r.run.settings)) / p.seconds},
        {"phase_s", {{"forward", p.forward_s}, {"backward", p.backward_s}, {"commit", p.commit_s}}},
        {"lane_s",
         {{"cpu", p.lanes.cpu_s},
          {"nvme", p.lanes.nvme_s},
          {"link", p.lanes.link_s},
          {"dram", p.lanes.dram_s},
          {"gpu", p.lanes.gpu_s}}},
        {"work_s",
         {{"forward", costs.pass.forward_s},
          {"backward", costs.pass.backward_s},
          {"update", costs.update_s},
          {"weights", costs.weights_s},
          {"gradients", costs.gradients_s},
          {"checksums", costs.checksums_s},
          {"layer_inputs", costs.inputs_s}}},
        {"sharing", costs.sharing},
        {"commit",
         {{"bytes", costs.commit_bytes},
          {"seconds", p.commit.seconds},
          {"hidden_s", p.commit.hidden_s},
          {"exposed_s", p.commit.exposed_s}}},
        {"bound_s", p.bound.seconds},
        {"bound_by", p.bound.by},
        {"hiding_tokens", hiding_tokens(costs, tokens_per_step(r.run.settings))},
        {"rates",
         {{"nvme_read", costs.rates.nvme_read},
          {"nvme_write", costs.rates.nvme_write},
          {"nvme_mixed", costs.rates.nvme_mixed},
          {"h2d", costs.rates.to_device},
          {"d2h", costs.rates.to_host},
          {"dram", costs.rates.dram}}}};
}

Json advice_json(const std::vector<PlanAdvice>& advice) {
    auto list = Json::array();
    for (const auto& one : advice)
        list.push_back({{"change", one.change},
                        {"meaning", one.meaning},
                        {"predicted_step_s", one.predicted_s},
                        {"tokens_per_s", one.tokens_per_s},
                        {"gain", one.gain}});
    return list;
}

Json endurance_json(const DriveEndurance& endurance) {
    return {{"written_bytes_per_day", endurance.written_bytes_per_day},
            {"endurance_days",
             endurance.endurance_days ? Json(*endurance.endurance_days) : Json(nullptr)}};
}

Json optimum_json(const ComputeOptimum& optimum) {
    return {{"budget_s", optimum.budget_s},
            {"tokens", optimum.tokens},
            {"optimal_parameters", optimum.optimal_parameters},
            {"optimal_tokens", optimum.optimal_tokens}};
}

void add_prediction_lines(const PlanReport& r, std::vector<std::string>& lines) {
    const auto& p = *r.prediction;
    const auto tokens = tokens_per_step(r.run.settings);
    lines.push_back(fmt::format("step          {:.3f} s predicted, {:.0f} tokens/s", p.seconds,
                                static_cast<double>(tokens) / p.seconds));
    lines.push_back(
        fmt::format("  busy        cpu {:.3f} s, drive {:.3f} s, link {:.3f} s, "
                    "memory {:.3f} s",
                    p.lanes.cpu_s, p.lanes.nvme_s, p.lanes.link_s, p.lanes.dram_s));
    lines.push_back(
        fmt::format("  bound       {:.3f} s, set by the {}", p.bound.seconds, p.bound.by));
    lines.push_back(fmt::format("  commit      {} written, {:.3f} s, {:.3f} s of it waited for",
                                human_bytes(r.costs->commit_bytes), p.commit.seconds,
                                p.commit.exposed_s));
    if (const auto hiding = hiding_tokens(*r.costs, tokens); hiding > 0)
        lines.push_back(
            fmt::format("  tokens      {} a step; {} would hide the drive", tokens, hiding));
}

void add_tuning_lines(const RunTuning& tuning, std::vector<std::string>& lines) {
    lines.push_back(fmt::format("tuning        {}{}", tuning_text(tuning),
                                tuning.gain > 1 ? fmt::format("; measured {:.2f} times as fast as "
                                                              "the defaults",
                                                              tuning.gain)
                                                : ""));
    if (!tuning.note.empty())
        lines.push_back("  note        " + tuning.note);
}

std::string days_text(double days) {
    return days > 730 ? fmt::format("{:.0f} years", days / 365) : fmt::format("{:.0f} days", days);
}

void add_endurance_line(const PlanReport& r, std::vector<std::string>& lines) {
    if (r.endurance && r.endurance->written_bytes_per_day > 0)
        lines.push_back(fmt::format(
            "drive         {} written a day{}",
            human_bytes(static_cast<std::uint64_t>(r.endurance->written_bytes_per_day)),
            r.endurance->endurance_days
                ? fmt::format(", {} to its endurance", days_text(*r.endurance->endurance_days))
                : "; --tbw tells how long it lasts"));
}

void add_closing_lines(const PlanReport& r, std::vector<std::string>& lines) {
    add_endurance_line(r, lines);
    if (r.optimum)
        lines.push_back(
            fmt::format("budget        {:.3g} M tokens for {:.3g} M parameters; compute-optimal "
                        "would be {:.3g} "
                        "M parameters and {:.3g} M tokens",
                        static_cast<double>(r.optimum->tokens) * 1e-6,
                        static_cast<double>(r.run.layout.order.parameters()) * 1e-6,
                        r.optimum->optimal_parameters * 1e-6, r.optimum->optimal_tokens * 1e-6));
    for (const auto& advice : r.advice)
        lines.push_back(fmt::format("would help    {}: {:+.0f} % tokens/s ({})", advice.change,
                                    100 * (advice.gain - 1), advice.meaning));
}

}  // namespace

DriveEndurance drive_endurance(const PlannedRun& run, const StepPrediction& prediction,
                               double tbw_bytes) {
    const auto steps_per_day = day_s / prediction.seconds;
    const auto interval = parse_commit_interval(run.settings.commit_every);
    const auto commits_per_day = interval.steps > 0
                                     ? steps_per_day / static_cast<double>(interval.steps)
                                     : day_s / interval.seconds;
    DriveEndurance endurance;
    endurance.written_bytes_per_day =
        static_cast<double>(run.plan.offload.nvme_written_bytes_per_step) * steps_per_day +
        static_cast<double>(run.plan.offload.commit_bytes) * commits_per_day;
    if (tbw_bytes > 0 && endurance.written_bytes_per_day > 0)
        endurance.endurance_days = tbw_bytes / endurance.written_bytes_per_day;
    return endurance;
}

ComputeOptimum compute_optimum(const PlannedRun& run, const StepCosts& costs,
                               const StepPrediction& prediction) {
    const auto tokens = static_cast<double>(tokens_per_step(run.settings));
    const auto parameters = static_cast<double>(run.layout.order.parameters());
    ComputeOptimum optimum;
    optimum.budget_s = run.settings.budget_s;
    optimum.tokens =
        static_cast<std::uint64_t>(run.settings.budget_s / prediction.seconds * tokens);
    const double operations =
        6 * parameters * tokens / (costs.pass.forward_s + costs.pass.backward_s) * optimum.budget_s;
    optimum.optimal_parameters = std::sqrt(operations / (6 * 20));
    optimum.optimal_tokens = 20 * optimum.optimal_parameters;
    return optimum;
}

std::string plan_report_json(const PlanReport& r) {
    const auto& run = r.run;
    const auto parameters = run.layout.order.parameters();
    const Json report{
        {"model", {{"name", run.settings.model}, {"parameters", parameters}}},
        {"device", r.device},
        {"exact", is_exact(run.settings)},
        {"tokens_per_step", tokens_per_step(run.settings)},
        {"micro_batches", run.plan.shape.micro_batches},
        {"recompute", run.plan.shape.recompute == Recompute::full ? "full" : "cheap-parts"},
        {"rest_bytes_per_parameter", rest_bytes_per_parameter(run.settings)},
        {"bytes_without_offloading", bytes_without_offloading(run.plan, parameters)},
        {"tiers", tiers_json(r)},
        {"placement", placement_json(r)},
        {"layer_inputs", layer_inputs_json(run.plan)},
        {"bytes_per_step", traffic_json(r)},
        {"tuning", tuning_json(run.tuning)},
        {"prediction", r.prediction ? prediction_json(r) : Json(nullptr)},
        {"endurance", r.endurance ? endurance_json(*r.endurance) : Json(nullptr)},
        {"compute_optimum", r.optimum ? optimum_json(*r.optimum) : Json(nullptr)},
        {"advice", advice_json(r.advice)},
        {"settings", Json::parse(settings_json(run.settings))}};
    return report.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> plan_report_lines(const PlanReport& r) {
    const auto& run = r.run;
    const auto& plan = run.plan;
    const auto parameters = run.layout.order.parameters();
    const bool own_memory = run.budgets.device_kind == cuda::MemoryKind::device;
    std::vector<std::string> lines{
        fmt::format("model         {} parameters, {} tokens a step", parameters,
                    tokens_per_step(run.settings)),
        fmt::format("memory        needed       budget       (without Spillway {} in one place)",
                    human_bytes(bytes_without_offloading(plan, parameters))),
        fmt::format("  host        {:<12} {}",
                    human_bytes(plan.host_bytes(run.budgets.device_kind)),
                    human_bytes(run.budgets.host_bytes)),
        fmt::format("  {:<11} {:<12} {}", own_memory ? "device" : "of it work",
                    human_bytes(plan.device_bytes()), human_bytes(run.budgets.device_bytes)),
        fmt::format("  drive       {:<12} {} free in {}", human_bytes(plan.offload.disk_bytes),
                    human_bytes(r.drive_available_bytes), r.drive_folder),
        "planes        host         drive"};
    for (const auto& place : placements(run))
        lines.push_back(fmt::format("  {:<11} {:<12} {}", place.name, human_bytes(place.host_bytes),
                                    human_bytes(place.nvme_bytes)));
    if (plan.moved_input_bytes() > 0) {
        using offload::ActivationTier;
        lines.push_back(
            fmt::format("layer inputs  {} on the device, {} in host memory, {} on the drive",
                        human_bytes(plan.inputs_in(ActivationTier::device)),
                        human_bytes(plan.inputs_in(ActivationTier::host)),
                        human_bytes(plan.inputs_in(ActivationTier::nvme))));
    }
    if (const auto again = plan.offload.activations.layers_in(offload::ActivationTier::none);
        again > 0)
        lines.push_back(fmt::format("layer inputs  of {} layers made again in backward", again));
    lines.push_back(fmt::format(
        "traffic       {} read from the drive and {} written a step, {:.2f} bytes a parameter",
        human_bytes(plan.offload.nvme_read_bytes_per_step),
        human_bytes(plan.offload.nvme_written_bytes_per_step), nvme_bytes_per_parameter(r)));
    add_tuning_lines(run.tuning, lines);
    if (run.settings.state != "fp32")
        lines.push_back(
            fmt::format("formats       state in {}: rounded, not exact", run.settings.state));
    if (run.settings.clip.kind == ClipKind::layer)
        lines.push_back(fmt::format("clipping      {}: each tensor by its own norm, not exact",
                                    clip_text(run.settings.clip)));
    if (r.prediction)
        add_prediction_lines(r, lines);
    add_closing_lines(r, lines);
    return lines;
}

}  // namespace spillway::engine
