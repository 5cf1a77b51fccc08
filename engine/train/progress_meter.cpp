// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/progress_meter.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "engine/train/train_result.h"

namespace spillway::engine {

std::string human_time(double seconds) {
    const auto whole = static_cast<std::uint64_t>(std::max(0.0, seconds) + 0.5);
    if (whole >= 3600)
        return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
    if (whole >= 60)
        return fmt::format("{}m{:02}s", whole / 60, whole % 60);
    return fmt::format("{}s", whole);
}

ProgressMeter::ProgressMeter(Console& console, std::optional<StepBound> bound)
    : console_(console), bound_(std::move(bound)) {}

void ProgressMeter::report(const StepReport& step) {
    using namespace std::chrono_literals;
    ++steps_;
    steps_s_ += step.step_s;
    tokens_ += step.tokens;
    const bool terminal = console_.human_stream() == HumanStream::terminal;
    const auto now = Clock::now();
    if (now - shown_at_ < (terminal ? Clock::duration(200ms) : Clock::duration(10s)))
        return;
    if (terminal)
        console_.progress(line(step));
    else
        console_.line(line(step));
    shown_at_ = now;
    shown_ = step;
    steps_ = 0;
    steps_s_ = 0;
    tokens_ = 0;
}

std::string ProgressMeter::line(const StepReport& step) const {
    const double seconds = std::max(steps_s_, 1e-9);
    auto text = fmt::format("step {}", step.iteration);
    if (step.steps > 0)
        text += fmt::format("/{}", step.steps);
    text += fmt::format("  loss {:.4f}  {:.0f} tok/s", step.loss,
                        static_cast<double>(tokens_) / seconds);
    if (bound_)
        text +=
            fmt::format("  {:.0f}% of {}",
                        100 * bound_->seconds * static_cast<double>(steps_) / seconds, bound_->by);
    const std::array<std::pair<const char*, std::uint64_t>, 4> edges{
        {{"rd", step.offload.nvme_read_bytes - shown_.offload.nvme_read_bytes},
         {"wr", step.offload.nvme_written_bytes - shown_.offload.nvme_written_bytes},
         {"up", step.device.to_device_bytes - shown_.device.to_device_bytes},
         {"down", step.device.to_host_bytes - shown_.device.to_host_bytes}}};
    for (const auto& [edge, bytes] : edges) {
        if (bytes > 0)
            text += fmt::format("  {} {:.2f}", edge, static_cast<double>(bytes) / seconds / 1e9);
    }
    if (std::any_of(edges.begin(), edges.end(), [](const auto& edge) { return edge.second > 0; }))
        text += " GB/s";
    const auto commit = commit_cost(shown_.offload, step.offload);
    const bool is_first = shown_.iteration == 0;  // behind the commit that a new run begins with
    if (commit.commits > 0 && !is_first)
        text +=
            fmt::format("  commit {:.2f} GB {:.2f} s ({:.2f} s waited)",
                        static_cast<double>(commit.bytes) * 1e-9, commit.wall_s, commit.exposed_s);
    if (step.left_s >= 0)
        text += "  " + human_time(step.left_s) + " left";
    return text;
}

}  // namespace spillway::engine
