// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/plan.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "engine/cli/option_set.h"
#include "engine/cli/usage_error.h"
#include "engine/cli/verb_table.h"
#include "engine/plan/plan_report.h"
#include "engine/settings/setting_fields.h"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

void require_sound(TrainSettings& settings) {
    auto problems = problems_here(settings, SettingsUse::plan);
    if (!problems.empty())
        throw UsageError(std::move(problems));
    resolve_choices(settings);
}

void predict(PlanReport& report, Gpus gpus, double tbw_bytes, Console& console) {
    const auto machine = make_run_machine(report.run.settings, report.run.budgets, std::move(gpus));
    report.overhead_bytes = resident_memory().now_bytes;
    const auto speed = measure_speed(report.run, machine, console);
    report.costs = step_costs(speed, report.run);
    report.prediction = predict_step(*report.costs, update_timing(report.run.settings));
    report.endurance = drive_endurance(report.run, *report.prediction, tbw_bytes);
    if (report.run.settings.budget_s > 0)
        report.optimum = compute_optimum(report.run, *report.costs, *report.prediction);
    report.advice = advise(report.run, speed, *report.prediction, report.available);
}

}  // namespace

int run_plan(std::span<const std::string> arguments, Console& console) {
    TrainSettings settings;
    std::uint64_t tbw_bytes = 0;
    OptionSet options("plan",
                      "Tells what a run would take and how fast it would go; runs nothing.");
    declare_settings(options, settings);
    options.add_bytes(
        {"tbw", "BYTES", "the drive may be written in its life, such as 600TB", "not known"},
        tbw_bytes);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    require_sound(settings);
    auto gpus = open_gpus(settings);
    const auto available = available_memory();
    PlanReport report{.run = fit_run(settings, gpus, available, console), .available = available};
    require_disk(report.run.plan, report.run.settings);
    const auto folder = drive_folder(report.run.settings);
    report.drive_folder = folder.string();
    report.drive_available_bytes = fs::space(folder).available;
    report.device = report.run.settings.device;
    if (report.run.settings.probe == "on")
        predict(report, std::move(gpus), static_cast<double>(tbw_bytes), console);
    for (const auto& line : plan_report_lines(report))
        console.line(line);
    if (!report.run.settings.json.empty())
        console.write_json(plan_report_json(report), report.run.settings.json);
    return as_int(ExitCode::done);
}

}  // namespace spillway::engine
