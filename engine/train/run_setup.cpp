// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/run_setup.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/cli/output_place.h"
#include "engine/cli/usage_error.h"
#include "engine/compute/blas_kernels.h"
#include "engine/measure/drive_choice.h"
#include "engine/plan/first_use.h"
#include "engine/settings/optimizer_choice.h"
#include "engine/train/metrics_log.h"
#include "engine/train/train_report.h"
#include "nvme/direct_file.h"
#include "nvme/links.h"
#include "offload/disk_room.h"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

/// The folder of a run to go on with; none to start a new one.
std::optional<offload::StateFolder> open_former_run(const TrainSettings& settings) {
    if (settings.out.empty())
        return std::nullopt;
    if (const auto problem = folder_problem(settings.out); !problem.empty())
        throw UsageError(fmt::format("--out {}: {}", settings.out.string(), problem));
    if (settings.resume)
        return offload::StateFolder::holds_run(settings.out)
                   ? std::optional(
                         offload::StateFolder::open(settings.out, offload::LockMode::exclusive))
                   : std::nullopt;
    if (fs::exists(settings.out) && !fs::is_directory(settings.out))
        throw UsageError(fmt::format("--out {}: is a file; name a folder", settings.out.string()));
    if (fs::exists(settings.out) && !fs::is_empty(settings.out))
        throw UsageError(fmt::format(
            "--out {}: the folder is not empty; give --resume to go on with the run in it, or name "
            "another folder",
            settings.out.string()));
    return std::nullopt;
}

std::vector<std::string> folder_texts(const std::vector<fs::path>& folders) {
    std::vector<std::string> texts;
    for (const auto& folder : folders)
        texts.push_back(folder.string());
    return texts;
}

/// The --nvme folders of a run, "" if its extents lie in its own folder.
std::string nvme_of(const offload::StateFolder& folder) {
    std::string all;
    for (const auto& extents : folder.extents_folders()) {
        const auto above = extents.parent_path();
        if (above.filename() == offload::StateFolder::extents_name)
            all += (all.empty() ? "" : ",") + above.parent_path().string();
    }
    return all;
}

enum class StatePlace { stays, moves };

/// Where the state is to be: on the drives that were given, else where it is.
StatePlace adopt_nvme(TrainSettings& settings, const offload::StateFolder& folder,
                      const GivenSettings& given, std::vector<std::string>& problems) {
    if (given("nvme") && !settings.nvme.empty()) {
        try {
            if (!folder.lies_on(nvme_folders(settings.nvme)))
                return StatePlace::moves;
        } catch (const offload::FolderRefused& refused) {
            problems.push_back(fmt::format("--nvme {}: {}", settings.nvme, refused.what()));
        }
    }
    settings.nvme = nvme_of(folder);
    return StatePlace::stays;
}

/// Says now and then how far a move is.
std::function<void(std::uint64_t, std::uint64_t)> move_progress(Console& console) {
    using namespace std::chrono_literals;
    using Clock = std::chrono::steady_clock;
    const bool terminal = console.human_stream() == HumanStream::terminal;
    return [&console, terminal, shown_at = Clock::now()](std::uint64_t moved,
                                                         std::uint64_t all) mutable {
        if (Clock::now() - shown_at < (terminal ? Clock::duration(200ms) : Clock::duration(10s)))
            return;
        shown_at = Clock::now();
        const auto text =
            fmt::format("moving the state: {} of {}", human_bytes(moved), human_bytes(all));
        if (terminal)
            console.progress(text);
        else
            console.line(text);
    };
}

/// Takes the run's state to the drives of the settings. False: it has no commit, so a new run can
/// be made there.
bool move_state(RunSetup& setup, offload::StateFolder& folder, const StopRequest& stop,
                Console& console) {
    const auto& settings = setup.run.settings;
    setup.moved = offload::relocate(
        folder, nvme_folders(settings.nvme),
        {.io = {.every_drive = {.backend = io_backend_kind(settings)},
                .drives = choose_drive_io(settings),
                .on_overdue = [&console](const std::string& text) { console.warning(text); }},
         .stop = [&stop] { return stop.requested(); },
         .progress = move_progress(console)});
    if (!setup.moved)
        return false;
    setup.run.settings.nvme = nvme_of(folder);
    const auto& moved = *setup.moved;
    console.clear_progress();
    console.line(fmt::format(
        "moved the state ({}) from {} to {} in {:.1f} s, {:.2f} GB/s", human_bytes(moved.bytes),
        fmt::join(folder_texts(moved.from), ", "), fmt::join(folder_texts(moved.to), ", "),
        moved.seconds, static_cast<double>(moved.bytes) * 1e-9 / std::max(moved.seconds, 1e-9)));
    if (!moved.left.empty())
        console.warning(moved.left + " (`spillway clean` lists and removes what dead runs left)");
    return true;
}

/// The first of --nvme; "" without it.
fs::path first_drive(const TrainSettings& settings) {
    const auto folders = nvme_folders(settings.nvme);
    return folders.empty() ? fs::path() : folders.front();
}

std::vector<fs::path> further_drives(const TrainSettings& settings) {
    const auto folders = nvme_folders(settings.nvme);
    return folders.empty() ? folders : std::vector<fs::path>(folders.begin() + 1, folders.end());
}

void require_sound(const TrainSettings& settings, std::vector<std::string> problems) {
    const auto more = problems_here(settings, SettingsUse::train);
    problems.insert(problems.end(), more.begin(), more.end());
    if (!problems.empty())
        throw UsageError(std::move(problems));
}

/// A longer run keeps the schedule it began with (P1); one that has fallen to 0 teaches nothing
/// more.
void warn_of_ended_schedule(const TrainSettings& settings, Console& console) {
    if (settings.steps > settings.schedule_steps && settings.schedule != "constant" &&
        settings.min_lr == 0)
        console.warning(fmt::format(
            "the run's schedule ends at update {} with a learning rate of 0: steps from there to "
            "{} change nothing; a run that may grow wants --min-lr or --schedule-steps",
            settings.schedule_steps, settings.steps));
}

std::unique_ptr<ByteCorpus> open_corpus(const TrainSettings& settings) {
    try {
        return std::make_unique<ByteCorpus>(
            std::vector<fs::path>(settings.data.begin(), settings.data.end()),
            settings.sequence_tokens());
    } catch (const std::invalid_argument& error) {
        throw UsageError(std::string("--data: ") + error.what());
    }
}

std::optional<ProgressReplay> open_replay(const TrainSettings& settings) {
    if (settings.replay_progress.empty())
        return std::nullopt;
    try {
        return ProgressReplay(settings.replay_progress);
    } catch (const std::runtime_error& error) {
        throw UsageError(std::string("--replay-progress: ") + error.what());
    }
}

/// Where the trace is to lie, links followed; empty where it cannot be said, or nothing is yet.
fs::path folder_of_trace(const TrainSettings& settings) {
    if (settings.trace.empty())
        return {};
    try {
        const auto folder = fs::absolute(nvme::behind_links(settings.trace)).parent_path();
        return fs::is_directory(folder) ? folder : fs::path();
    } catch (const std::system_error&) {  // whoever opens it says what is wrong
        return {};
    }
}

/// Of a folder that the run is yet to make the disk is checked anyway.
void require_trace_room(const TrainSettings& settings) {
    constexpr auto least = offload::StepTrace::least_room_bytes;
    const auto folder = folder_of_trace(settings);
    if (folder.empty())
        return;
    if (const auto room = nvme::available_bytes(folder); room < least)
        throw UsageError(
            fmt::format("--trace {}: {} has room for {} bytes; a trace takes {} and more",
                        settings.trace.string(), folder.string(), room, least));
}

WorkDone work_done(const TrainSettings& settings) {
    const auto end = logged_end(settings.out);
    return {end.iteration, end.elapsed_s};
}

StepBound bound_of(const PlannedRun& run, const MachineSpeed& speed) {
    const auto costs = step_costs(speed, run);
    return step_bound(lane_times(costs.rates, costs.demand()));
}

/// Measures what the bound needs, and searches for a faster tuning where that is worth it. Returns
/// whether there is another plan now.
bool measure(RunSetup& setup, const WorkDone& done, const StopRequest& stop, Console& console) {
    std::optional<MachineSpeed> speed;
    auto& run = setup.run;
    if (run.settings.probe == "on") {
        speed = measure_speed(run, setup.machine, console);
        setup.bound = bound_of(run, *speed);
    }
    const auto before = run.settings.tuning;
    if (const auto seconds = search_s(run, setup.bound ? setup.bound->seconds : 0, done);
        seconds > 0)
        tune_on_first_use(
            run, setup.machine, seconds, [&stop] { return stop.requested(); }, console);
    const bool changed = run.settings.tuning != before;
    if (speed && changed)
        setup.bound = bound_of(run, *speed);
    if (setup.bound)
        console.line(fmt::format("bound: {:.3f} s a step, set by the {}", setup.bound->seconds,
                                 setup.bound->by));
    return changed;
}

/// Of a run whose extents have theirs: for what a session alone keeps on drives.
void require_passing_room(const PlannedRun& run) {
    const auto& plan = run.plan.offload;
    if (const auto bytes = plan.nvme_activation_bytes_per_step + plan.nvme_gradient_bytes_per_step;
        bytes > 0)
        offload::require_disk_room(nvme_folders(run.settings.nvme), bytes);
}

void tell_plan(const PlannedRun& run, Console& console) {
    for (const auto& line : train_plan_lines(run.plan, run.budgets))
        console.line(line);
}

/// A new run's folder, where a dead one may have left something of the program's own.
offload::StateFolder create_folder(const RunSetup& setup, const std::string& fingerprint) {
    const auto& settings = setup.run.settings;
    if (settings.resume && fs::exists(settings.out)) {
        offload::StateFolder::start_over(settings.out, first_drive(settings),
                                         further_drives(settings));
        fs::remove(settings.out / MetricsLog::file_name);
    }
    const auto tensors = setup.run.layout.order.tensors();
    return offload::StateFolder::create(
        settings.out, first_drive(settings), {tensors.begin(), tensors.end()}, settings.durable,
        make_run_record(settings, fingerprint, blas_kernels()), planes_of(settings),
        further_drives(settings), std::nullopt, second_moments_of(settings));
}

/// The user named another place than can be used, as opposed to a drive that fails or is full.
bool is_of_the_place(const std::error_code& code) {
    using std::errc;
    for (const auto condition :
         {errc::permission_denied, errc::operation_not_permitted, errc::read_only_file_system,
          errc::filename_too_long, errc::no_such_file_or_directory, errc::not_a_directory})
        if (code == condition)
            return true;
    return false;
}

offload::StateFolder create_folder_or_refuse(const RunSetup& setup,
                                             const std::string& fingerprint) {
    try {
        return create_folder(setup, fingerprint);
    } catch (const std::system_error& error) {
        if (!is_of_the_place(error.code()))
            throw;
        const auto& settings = setup.run.settings;
        throw UsageError(
            fmt::format("--out {}{}: the run's folder cannot be made: {}", settings.out.string(),
                        settings.nvme.empty() ? "" : " --nvme " + settings.nvme, error.what()));
    }
}

}  // namespace

std::unique_ptr<offload::StepTrace> open_trace(const TrainSettings& settings, Console& console) {
    if (settings.trace.empty())
        return nullptr;
    return std::make_unique<offload::StepTrace>(
        settings.trace, [&console](const std::string& text) { console.warning(text); });
}

RunSetup prepare_run(TrainSettings settings, const GivenSettings& given, const StopRequest& stop,
                     Console& console) {
    auto folder = open_former_run(settings);
    auto place = StatePlace::stays;
    std::vector<std::string> problems;
    if (folder) {
        problems = adopt_run_record(settings, folder->manifest().client_settings, given);
        place = adopt_nvme(settings, *folder, given, problems);
    }
    require_sound(settings, std::move(problems));
    resolve_choices(settings);
    warn_of_ended_schedule(settings, console);
    auto corpus = open_corpus(settings);
    const auto fingerprint = corpus->fingerprint();
    if (folder) {
        if (const auto problem = data_problem(folder->manifest().client_settings, fingerprint);
            !problem.empty())
            throw UsageError(problem);
        if (const auto warning =
                kernels_warning(folder->manifest().client_settings, blas_kernels());
            !warning.empty())
            console.warning(warning);
    }
    require_trace_room(settings);
    auto replay = open_replay(settings);
    auto gpus = open_gpus(settings);
    auto run = fit_run(std::move(settings), gpus, available_memory(), console);
    if (!folder || place == StatePlace::moves)
        require_disk(run.plan, run.settings);
    else
        require_passing_room(run);
    tell_plan(run, console);
    if (run.tuning.gain > 1)
        console.line(fmt::format("plan: {}; measured {:.2f} times as fast as the defaults",
                                 tuning_text(run.tuning), run.tuning.gain));
    if (!run.tuning.note.empty())
        console.line("note: " + run.tuning.note);
    RunSetup setup{.run = std::move(run),
                   .corpus = std::move(corpus),
                   .replay = std::move(replay),
                   .machine = {},
                   .bound = {},
                   .trace = {},
                   .folder = {},
                   .moved = {}};
    setup.machine = make_run_machine(setup.run.settings, setup.run.budgets, std::move(gpus));
    for (const auto& note : connect_devices(setup.machine))
        console.line("note: " + note);
    setup.overhead_bytes = resident_memory().now_bytes;
    if (measure(setup, folder ? work_done(setup.run.settings) : WorkDone{}, stop, console)) {
        if (!folder || place == StatePlace::moves)
            require_disk(setup.run.plan, setup.run.settings);
        else
            require_passing_room(setup.run);
        tell_plan(setup.run, console);
    }
    if (!folder_of_trace(setup.run.settings).empty())
        setup.trace = open_trace(setup.run.settings, console);
    if (folder && place == StatePlace::stays)
        offload::finish_relocations(*folder);
    else if (folder && !move_state(setup, *folder, stop, console))
        folder.reset();
    if (folder)
        setup.folder.emplace(std::move(*folder));
    else
        setup.folder.emplace(create_folder_or_refuse(setup, fingerprint));
    return setup;
}

}  // namespace spillway::engine
