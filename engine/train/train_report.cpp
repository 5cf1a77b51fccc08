// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/train_report.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/plan/memory_items_json.h"
#include "engine/settings/optimizer_choice.h"
#include "engine/train/run_record.h"
#include "engine/train/trace_json.h"

namespace spillway::engine {
namespace {

using Json = nlohmann::ordered_json;

template <typename Value>
Json or_null(const std::optional<Value>& value) {
    return value ? Json(*value) : Json(nullptr);
}

Json plan_json(const TrainResult& r) {
    const auto& plan = r.plan;
    return {{"micro_batches", plan.shape.micro_batches},
            {"recompute", plan.shape.recompute == Recompute::full ? "full" : "cheap-parts"},
            {"activation_bytes", plan.activation_bytes},
            {"layer_inputs", layer_inputs_json(plan)},
            {"host_budget_bytes", r.budgets.host_bytes},
            {"host_bytes", plan.host_bytes(r.budgets.device_kind)},
            {"device_budget_bytes", r.budgets.device_bytes},
            {"device_bytes", plan.device_bytes()},
            {"devices", r.budgets.ranks},
            {"disk_bytes", plan.offload.disk_bytes},
            {"chunk_tiles", plan.offload.chunk_tiles},
            {"chunks", plan.offload.chunks},
            {"host_items", items_json(plan.offload.host_items)},
            {"device_items", items_json(plan.device_items())},
            {"nvme_read_bytes_per_step", plan.offload.nvme_read_bytes_per_step},
            {"nvme_written_bytes_per_step", plan.offload.nvme_written_bytes_per_step},
            {"bytes_without_offloading", bytes_without_offloading(plan, r.parameters)}};
}

Json stall_json(const offload::StallSeconds& s) {
    return {{"nvme_read", s.nvme_read}, {"nvme_write", s.nvme_write},
            {"link", s.link},           {"cpu", s.cpu},
            {"commit", s.commit},       {"devices", s.devices}};
}

/// Of several devices that one's which stood still longest: it sets the pace.
const offload::StallSeconds& longest_stall(const offload::OffloadStatistics& s) {
    const auto longest =
        std::ranges::max_element(s.stall_of_devices, {}, &offload::StallSeconds::sum);
    return longest == s.stall_of_devices.end() ? s.stall : *longest;
}

/// Each device of a run on several, by rank; empty for one.
Json devices_json(const TrainResult& r) {
    auto devices = Json::array();
    for (std::size_t rank = 0; rank < r.offload.stall_of_devices.size(); ++rank)
        devices.push_back({{"name", r.devices.at(rank)},
                           {"stall_s", stall_json(r.offload.stall_of_devices[rank])}});
    return devices;
}

Json peak_json(const PeakMemory& peak) {
    return {{"device_bytes", peak.device_bytes},
            {"host_bytes", peak.host_bytes},
            {"overhead_bytes", peak.overhead_bytes},
            {"rss_bytes", peak.rss_bytes}};
}

Json bytes_json(const TrainResult& r) {
    return {{"nvme_read", r.offload.nvme_read_bytes},
            {"nvme_written", r.offload.nvme_written_bytes},
            {"commit", r.offload.commit_bytes},
            {"h2d", r.device_work.to_device_bytes},
            {"d2h", r.device_work.to_host_bytes}};
}

/// What commits cost the run beside its steps. Hidden is what went on while steps did.
Json commit_json(const CommitCost& cost) {
    const auto each = static_cast<double>(std::max<std::uint64_t>(cost.commits, 1));
    return {{"commits", cost.commits},
            {"bytes_per_commit", static_cast<double>(cost.bytes) / each},
            {"wall_s", cost.wall_s},
            {"write_s", cost.write_s},
            {"flush_s", cost.flush_s},
            {"exposed_s", cost.exposed_s},
            {"hidden_s", std::max(0.0, cost.wall_s - cost.exposed_s)}};
}

/// By drive: what it moved, how fast while it was busy, and how much of the state lies there.
Json drives_json(const offload::OffloadStatistics& s) {
    auto drives = Json::array();
    for (const auto& drive : s.drives)
        drives.push_back({{"extents", drive.folder.string()},
                          {"share", drive.share},
                          {"read_bytes", drive.read_bytes},
                          {"written_bytes", drive.written_bytes},
                          {"read_bytes_per_s", drive.read_bytes_per_s()},
                          {"write_bytes_per_s", drive.write_bytes_per_s()}});
    return drives;
}

Json folders_json(const std::vector<std::filesystem::path>& folders) {
    auto list = Json::array();
    for (const auto& folder : folders)
        list.push_back(folder.string());
    return list;
}

/// The state's move to other drives; null if it stayed.
Json moved_json(const std::optional<offload::Relocation>& moved) {
    if (!moved)
        return nullptr;
    return {{"from", folders_json(moved->from)},
            {"to", folders_json(moved->to)},
            {"bytes", moved->bytes},
            {"seconds", moved->seconds}};
}

/// With several drives each, so that a slow one is seen by its name.
std::vector<std::string> drive_lines(const offload::OffloadStatistics& s) {
    std::vector<std::string> lines;
    if (s.drives.size() < 2)
        return lines;
    double fastest = 0;
    for (const auto& drive : s.drives)
        fastest = std::max(fastest, drive.read_bytes_per_s() + drive.write_bytes_per_s());
    for (const auto& drive : s.drives) {
        const auto rate = drive.read_bytes_per_s() + drive.write_bytes_per_s();
        lines.push_back(
            fmt::format("  drive       {}: {:.0f} % of the state, read at {:.2f} GB/s, written at "
                        "{:.2f} GB/s{}",
                        drive.folder.parent_path().parent_path().string(), 100 * drive.share,
                        drive.read_bytes_per_s() * 1e-9, drive.write_bytes_per_s() * 1e-9,
                        rate < fastest / 4 ? " (slow: less than a quarter of the fastest)" : ""));
    }
    return lines;
}

std::string dropped_text(const offload::TraceSummary& trace) {
    return trace.dropped_events == 0 ? ""
                                     : fmt::format(", {} more dropped, since its disk was too slow",
                                                   trace.dropped_events);
}

}  // namespace

std::string train_report_json(const TrainResult& r) {
    Json report{{"model", {{"name", r.settings.model}, {"parameters", r.parameters}}},
                {"device", r.device},
                {"isa", r.isa},
                {"io_backend", r.io_backend},
                {"steps", r.progress.iteration},
                {"session_steps", r.session_steps},
                {"tokens", r.progress.tokens},
                {"wall_s", r.wall_s},
                {"elapsed_s", r.progress.elapsed_s},
                {"tokens_per_s", r.tokens_per_s},
                {"loss",
                 {{"first", or_null(r.progress.first_loss)},
                  {"last", or_null(r.progress.last_loss)},
                  {"eval", or_null(r.evaluation_loss)},
                  {"eval_average", or_null(r.averaged_loss)}}},
                {"phase_s",
                 {{"forward", r.phases.forward_s},
                  {"backward", r.phases.backward_s},
                  {"optimizer", r.offload.update_wall_s},
                  {"commit", r.offload.commit_wall_s}}},
                {"stall_s", stall_json(longest_stall(r.offload))},
                {"devices", devices_json(r)},
                {"bytes", bytes_json(r)},
                {"drives", drives_json(r.offload)},
                {"moved", moved_json(r.moved)},
                {"moved_regions", r.offload.moved_regions},
                {"peak", peak_json(r.peak)},
                {"bound_s", r.bound ? Json(r.bound->seconds) : Json(nullptr)},
                {"bound_by", r.bound ? Json(r.bound->by) : Json(nullptr)},
                {"attained", or_null(r.attained)},
                {"exact", is_exact(r.settings)},
                {"updates", r.updates},
                {"skipped_steps", r.progress.skipped_steps},
                {"resumed_from_step", or_null(r.resumed_from_step)},
                {"interrupted", r.interrupted},
                {"commits", r.offload.commits},
                {"commit", commit_json(r.commit)},
                {"weights_xxh3", fmt::format("{:016x}", r.weights_xxh3)},
                {"average_xxh3",
                 r.average_xxh3 ? Json(fmt::format("{:016x}", *r.average_xxh3)) : Json(nullptr)},
                {"plan", plan_json(r)},
                {"tuning", tuning_json(r.tuning)},
                {"settings", Json::parse(settings_json(r.settings))}};
    if (r.trace)
        report["trace"] = trace_json(*r.trace);
    return report.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string human_bytes(std::uint64_t bytes) {
    constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < units.size()) {
        value /= 1024;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, units[unit]);
}

std::size_t bytes_without_offloading(const TrainPlan& plan, std::uint64_t parameters) noexcept {
    return plan.activation_bytes + static_cast<std::size_t>(parameters) * 16;
}

std::vector<std::string> train_plan_lines(const TrainPlan& plan, const MemoryBudgets& budgets) {
    const bool own_memory = budgets.device_kind == cuda::MemoryKind::device;
    std::vector<std::string> lines{
        fmt::format("plan: {} of {} host memory, {} on {}, {} read and {} written there a step",
                    human_bytes(plan.host_bytes(budgets.device_kind)),
                    human_bytes(budgets.host_bytes), human_bytes(plan.offload.disk_bytes),
                    "the drive", human_bytes(plan.offload.nvme_read_bytes_per_step),
                    human_bytes(plan.offload.nvme_written_bytes_per_step)),
        fmt::format("plan: {} micro-batch{}, backward computes {} again, {} chunks",
                    plan.shape.micro_batches, plan.shape.micro_batches == 1 ? "" : "es",
                    plan.shape.recompute == Recompute::full ? "whole blocks" : "cheap parts",
                    plan.offload.chunks)};
    if (own_memory)
        lines.push_back(fmt::format(
            "plan: {} of {} device memory{}, {} of it activations",
            human_bytes(plan.device_bytes()), human_bytes(budgets.device_bytes),
            budgets.ranks == 1 ? "" : fmt::format(" on each of {} devices", budgets.ranks),
            human_bytes(plan.activation_bytes)));
    if (plan.moved_input_bytes() > 0)
        lines.push_back(fmt::format(
            "plan: of the layers' inputs {} in host memory and {} on the drive between forward and "
            "backward",
            human_bytes(plan.inputs_in(offload::ActivationTier::host)),
            human_bytes(plan.inputs_in(offload::ActivationTier::nvme))));
    if (const auto again = plan.offload.activations.layers_in(offload::ActivationTier::none);
        again > 0)
        lines.push_back(fmt::format(
            "plan: backward makes the inputs of {} layers again, which nothing has room for",
            again));
    return lines;
}

std::vector<std::string> train_report_lines(const TrainResult& r) {
    const auto whole = human_bytes(bytes_without_offloading(r.plan, r.parameters));
    std::vector<std::string> lines{
        "memory        used         without Spillway",
        fmt::format("  device      {:<12} {}", human_bytes(r.peak.device_bytes), whole),
        fmt::format("  host        {:<12} and {} of overhead", human_bytes(r.peak.host_bytes),
                    human_bytes(r.peak.overhead_bytes)),
        fmt::format("  drive       {}", human_bytes(r.plan.offload.disk_bytes)),
        fmt::format("{} steps, {} tokens, {} updates, {} skipped; {:.1f} s, {:.0f} tokens/s",
                    r.progress.iteration, r.progress.tokens, r.updates, r.progress.skipped_steps,
                    r.wall_s, r.tokens_per_s)};
    if (r.commit.commits > 0)
        lines.push_back(fmt::format(
            "{} commit{}: {} written and {:.2f} s each, {:.2f} s of the run waited for them",
            r.commit.commits, r.commit.commits == 1 ? "" : "s",
            human_bytes(r.commit.bytes / r.commit.commits),
            r.commit.wall_s / static_cast<double>(r.commit.commits), r.commit.exposed_s));
    const auto drives = drive_lines(r.offload);
    lines.insert(lines.end(), drives.begin(), drives.end());
    if (r.progress.last_loss)
        lines.push_back(fmt::format(
            "loss {:.4f} at first, {:.4f} at last{}",
            r.progress.first_loss.value_or(*r.progress.last_loss), *r.progress.last_loss,
            r.evaluation_loss ? fmt::format(", {:.4f} on held-out text", *r.evaluation_loss) : ""));
    if (r.averaged_loss)
        lines.push_back(fmt::format("loss {:.4f} on held-out text with the averaged weights ({})",
                                    *r.averaged_loss, r.settings.average));
    if (r.bound && r.attained)
        lines.push_back(fmt::format("{:.0f} % of what the {} allows ({:.3f} s a step)",
                                    100 * *r.attained, r.bound->by, r.bound->seconds));
    if (r.trace && r.trace->failure.empty())
        lines.push_back(fmt::format("trace {}: {} events{}", r.trace->file.string(),
                                    r.trace->events, dropped_text(*r.trace)));
    lines.push_back(fmt::format("weights {:016x}", r.weights_xxh3));
    return lines;
}

}  // namespace spillway::engine
