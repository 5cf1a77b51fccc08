// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cpu_optim/isa.h"
#include "engine/measure/drive_choice.h"
#include "engine/measure/machine_memory.h"
#include "engine/plan/input_placement.h"
#include "engine/settings/average_choice.h"
#include "engine/settings/optimizer_choice.h"
#include "engine/train/master_hash.h"
#include "engine/train/metrics_log.h"
#include "engine/train/progress_meter.h"
#include "engine/train/run_clock.h"
#include "engine/train/step_passes.h"
#include "engine/train/train_report.h"
#include "nvme/io_backend.h"
#include "offload/step_trace.h"

namespace spillway::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t most_consecutive_skips = 10;

offload::OffloadOptions engine_options(const TrainSettings& settings,
                                       const std::vector<offload::DriveIo>& drive_io,
                                       offload::StepTrace* trace, unsigned ranks,
                                       Console& console) {
    offload::OffloadOptions options;
    options.threads = update_threads_of(settings.tuning, settings.threads);
    options.isa = cpu_optim::parse_isa(settings.isa);
    options.io.every_drive.backend = io_backend_kind(settings);
    options.io.drives = drive_io;
    options.io.on_overdue = [&console](const std::string& text) { console.warning(text); };
    options.durability =
        settings.durable == "off" ? offload::Durability::off : offload::Durability::on;
    options.timing = update_timing(settings);
    options.norms = settings.clip.kind == ClipKind::layer ? offload::GradientNorms::of_each_tensor
                                                          : offload::GradientNorms::of_all;
    options.average = average_rule(settings);
    options.rounding_seed = settings.seed;
    options.trace = trace;
    options.group_ranks = ranks > 1 ? ranks : 0;
    return options;
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

}  // namespace

class Trainer::Impl {
  public:
    Impl(RunSetup& setup, Console& console)
        : setup_(setup),
          settings_(setup.run.settings),
          console_(console),
          drive_io_(choose_drive_io(settings_)),
          trace_(setup.trace ? std::move(setup.trace) : open_trace(settings_, console)),
          steps_row_(trace_ ? trace_->add_mark_row("steps") : offload::TraceRow()),
          engine_(
              *std::exchange(setup.folder, std::nullopt), setup.run.layout.order,
              setup.run.layout.units, setup.machine.engine_device(), setup.machine.engine_compute(),
              setup.run.plan.offload,
              engine_options(settings_, drive_io_, trace_.get(), setup.run.budgets.ranks, console)),
          passes_(make_passes(setup.run, setup.machine, engine_)),
          training_uses_(
              gpt2_training_uses(setup.run.layout.config,
                                 inputs_made_again(setup.run.layout.config, setup.run.plan.shape))),
          interval_(parse_commit_interval(settings_.commit_every)),
          meter_(console, setup.bound) {
        const auto tokens =
            std::size_t{settings_.batch} * (settings_.sequence_tokens() + std::size_t{1});
        tokens_.resize(tokens);
        tell_io();
        recover_or_initialise();
        clock_.emplace(settings_, std::exchange(setup_.replay, std::nullopt), progress_.elapsed_s);
        log_.emplace(settings_.out, progress_.iteration);
        device_before_ = setup_.machine.device_statistics();
    }

    TrainResult run(const StopRequest& stop) {
        started_ = step_end_ = committed_at_ = Clock::now();
        offload_before_ = engine_.statistics();
        if (trace_)
            trace_->start();
        bool interrupted = false;
        while (!clock_->is_over(progress_.iteration, elapsed_s())) {
            if (stop.requested()) {
                interrupted = true;
                break;
            }
            train_step();
        }
        if (committed_iteration_ != progress_.iteration)
            request_commit();
        engine_.wait_idle();
        session_s_ = seconds_between(started_, Clock::now());
        if (trace_)
            trace_->stop();
        TrainResult result = collect(interrupted);
        if (!interrupted)
            evaluate(result.evaluation_loss, result.averaged_loss);
        result.weights_xxh3 = hash_of(offload::WeightKind::newest);
        if (engine_.has_average())
            result.average_xxh3 = hash_of(offload::WeightKind::averaged);
        result.peak = peak();
        if (trace_)
            result.trace = trace_->finish();
        console_.clear_progress();
        return result;
    }

  private:
    /// What a user would not expect.
    void tell_io() {
        const auto folders = nvme_folders(settings_.nvme);
        const offload::DriveIo usual{.backend = io_backend_kind(settings_)};
        bool is_tuned = false;
        for (std::size_t drive = 0; drive < drive_io_.size(); ++drive) {
            if (drive_io_[drive] == usual)
                continue;
            is_tuned = true;
            console_.line(fmt::format("I/O on {} as tuned: {}", folders[drive].string(),
                                      drive_io_text(drive_io_[drive])));
        }
        if (!is_tuned && settings_.io_backend == "auto" && engine_.io_backend_name() != "io_uring")
            console_.line("I/O by " + nvme::automatic_choice());
        for (const std::string& note : engine_.io_notes())
            console_.line("note: " + note);
    }

    void recover_or_initialise() {
        if (const auto recovered = engine_.recover()) {
            progress_ = parse_client_state(recovered->client_state);
            resumed_from_ = progress_.iteration;
            console_.line(fmt::format("resumed from step {} ({} updates)", progress_.iteration,
                                      recovered->update));
            if (!recovered->warning.empty())
                console_.line("warning: " + recovered->warning);
        } else {
            const auto& config = setup_.run.layout.config;
            engine_.initialise(
                [&config, seed = settings_.seed](offload::TensorId tensor, std::uint64_t first,
                                                 std::span<float> out) {
                    gpt2_initial_values(config, seed, tensor, first, out);
                },
                note());
        }
        session_start_ = progress_;
        committed_iteration_ = progress_.iteration;
    }

    [[nodiscard]] offload::CommitNote note() const {
        return {progress_.iteration, to_client_state(progress_)};
    }

    void train_step() {
        const offload::TraceSpan span(steps_row_, "step",
                                      {.what = "step", .number = progress_.iteration + 1});
        const auto update = engine_.update();
        const auto pace = clock_->pace(progress_.iteration, update, elapsed_s());
        setup_.corpus->training_window(settings_.seed, progress_.iteration, settings_.batch,
                                       settings_.sequence_tokens(), tokens_);
        passes_->begin(training_uses_, offload::WeightKind::newest);
        const bool at_once = update_timing(settings_) == offload::UpdateTiming::as_completed;
        if (at_once)
            engine_.begin_update(update_step(pace.learning_rate, {}));
        const double loss = passes_->train(tokens_);
        const auto gradient = engine_.finish_gradients();
        const bool skipped = !at_once && finish_update(pace.learning_rate, gradient);
        phases_.forward_s += passes_->times().forward_s;
        phases_.backward_s += passes_->times().backward_s;
        advance(loss, skipped);
        tell(loss, pace, gradient.norm, skipped);
        if (skipped && progress_.consecutive_skips >= most_consecutive_skips)
            throw std::runtime_error(fmt::format(
                "{} steps in a row had non-finite gradients (the last at step {}, first in {}): "
                "lower --lr, raise --warmup, or look at the data; the last commit stands at step "
                "{}",
                progress_.consecutive_skips, progress_.iteration, gradient.nonfinite_tensor,
                committed_iteration_));
        if (commit_is_due())
            request_commit();
    }

    /// Returns whether the step was skipped.
    bool finish_update(double learning_rate, const offload::GradientSummary& gradient) {
        if (gradient.nonfinite == 0 && std::isfinite(gradient.norm)) {
            engine_.begin_update(update_step(learning_rate, gradient));
            return false;
        }
        if (settings_.nonfinite == "stop")
            throw offload::NonfiniteGradient(fmt::format(
                "step {}: {} values of the gradient are not finite, the first of them in {}; "
                "--nonfinite skip would go on without this step",
                progress_.iteration + 1, gradient.nonfinite, gradient.nonfinite_tensor));
        engine_.skip_update();
        return true;
    }

    [[nodiscard]] offload::UpdateStep update_step(double learning_rate,
                                                  const offload::GradientSummary& gradient) const {
        offload::UpdateStep step{.groups = hyper_groups(settings_, learning_rate)};
        clip_gradients(settings_.clip, gradient, step);
        return step;
    }

    void advance(double loss, bool skipped) {
        ++progress_.iteration;
        progress_.tokens += tokens_per_step(settings_);
        progress_.skipped_steps += skipped ? 1 : 0;
        progress_.consecutive_skips = skipped ? progress_.consecutive_skips + 1 : 0;
        if (!progress_.first_loss)
            progress_.first_loss = loss;
        progress_.last_loss = loss;
    }

    void tell(double loss, const RunClock::Pace& pace, double norm, bool skipped) {
        const auto now = Clock::now();
        const double step_s = seconds_between(step_end_, now);
        step_end_ = now;
        progress_.elapsed_s = elapsed_s();
        clock_->step_ended(progress_.elapsed_s);
        const auto tokens = tokens_per_step(settings_);
        StepMetrics metrics{.iteration = progress_.iteration,
                            .update = engine_.update(),
                            .loss = loss,
                            .learning_rate = pace.learning_rate,
                            .gradient_norm = norm,
                            .skipped = skipped,
                            .tokens_per_s = static_cast<double>(tokens) / step_s,
                            .step_s = step_s,
                            .elapsed_s = progress_.elapsed_s,
                            .progress = pace.progress,
                            .evaluation_loss = {},
                            .averaged_loss = {}};
        if (settings_.eval_every > 0 && progress_.iteration % settings_.eval_every == 0 &&
            !clock_->is_over(progress_.iteration, elapsed_s()))
            evaluate(metrics.evaluation_loss, metrics.averaged_loss);
        log_->append(metrics);
        const auto session_steps = progress_.iteration - session_start_.iteration;
        meter_.report({.iteration = progress_.iteration,
                       .steps = settings_.steps,
                       .loss = loss,
                       .step_s = step_s,
                       .tokens = tokens,
                       .left_s = clock_->left_s(
                           progress_.iteration, elapsed_s(),
                           seconds_between(started_, now) / static_cast<double>(session_steps)),
                       .offload = engine_.statistics(),
                       .device = setup_.machine.device_statistics()});
    }

    [[nodiscard]] double elapsed_s() const {
        return session_start_.elapsed_s + seconds_between(started_, Clock::now());
    }

    [[nodiscard]] bool commit_is_due() const {
        if (interval_.steps > 0)
            return progress_.iteration % interval_.steps == 0;
        return seconds_between(committed_at_, Clock::now()) >= interval_.seconds;
    }

    void request_commit() {
        engine_.request_commit(note());
        committed_iteration_ = progress_.iteration;
        committed_at_ = Clock::now();
    }

    /// Of the newest weights, and of the average if there is one.
    void evaluate(std::optional<double>& newest, std::optional<double>& averaged) {
        newest = held_out_loss(offload::WeightKind::newest);
        if (engine_.has_average())
            averaged = held_out_loss(offload::WeightKind::averaged);
    }

    /// Mean loss of held-out sequences, whole batches of them: the same ones every time.
    std::optional<double> held_out_loss(offload::WeightKind kind) {
        const auto passes = (settings_.eval_sequences + settings_.batch - 1) / settings_.batch;
        if (passes == 0)
            return std::nullopt;
        double sum = 0;
        for (std::uint32_t pass = 0; pass < passes; ++pass) {
            setup_.corpus->held_out_window(pass, settings_.batch, settings_.sequence_tokens(),
                                           tokens_);
            passes_->begin(gpt2_evaluation_uses(setup_.run.layout.config), kind);
            sum += passes_->evaluate(tokens_);
        }
        return sum / passes;
    }

    std::uint64_t hash_of(offload::WeightKind kind) {
        MasterHash hash;
        engine_.visit_masters([&](offload::TensorId, std::uint64_t,
                                  std::span<const float> values) { hash.add(values); },
                              kind);
        return hash.digest();
    }

    TrainResult collect(bool interrupted) const {
        const auto steps = progress_.iteration - session_start_.iteration;
        const auto tokens = progress_.tokens - session_start_.tokens;
        TrainResult result{.settings = settings_,
                           .plan = setup_.run.plan,
                           .budgets = setup_.run.budgets,
                           .tuning = setup_.run.tuning,
                           .device = setup_.machine.device_names(),
                           .devices = device_list(settings_.device),
                           .isa = settings_.isa,
                           .io_backend = std::string(engine_.io_backend_name()),
                           .parameters = setup_.run.layout.order.parameters(),
                           .progress = progress_,
                           .session_steps = steps,
                           .wall_s = session_s_,
                           .tokens_per_s = static_cast<double>(tokens) / session_s_,
                           .evaluation_loss = {},
                           .averaged_loss = {},
                           .updates = engine_.update(),
                           .resumed_from_step = resumed_from_,
                           .interrupted = interrupted,
                           .moved = setup_.moved,
                           .phases = phases_,
                           .offload = engine_.statistics(),
                           .commit = commit_cost(offload_before_, engine_.statistics()),
                           .device_work = setup_.machine.device_statistics(),
                           .peak = {},
                           .bound = setup_.bound,
                           .attained = {}};
        result.device_work.to_device_bytes -= device_before_.to_device_bytes;
        result.device_work.to_host_bytes -= device_before_.to_host_bytes;
        if (setup_.bound && steps > 0)
            result.attained = setup_.bound->seconds * static_cast<double>(steps) / session_s_;
        return result;
    }

    [[nodiscard]] PeakMemory peak() const {
        const auto device = setup_.machine.device_statistics().peak_bytes;
        const auto* const units = setup_.machine.host.get();
        const bool on_host = setup_.run.budgets.device_kind == cuda::MemoryKind::host;
        // A host device's memory is host memory, and its activations are in `device` already.
        const auto client =
            setup_.run.plan.client_host_bytes - (on_host ? setup_.run.plan.activation_bytes : 0);
        return {.device_bytes = device,
                .host_bytes = engine_.statistics().host_peak_bytes + client +
                              (on_host ? device : 0) +
                              (units != nullptr ? units->statistics().peak_bytes : 0),
                .overhead_bytes = setup_.overhead_bytes,
                .rss_bytes = resident_memory().peak_bytes};
    }

    RunSetup& setup_;
    const TrainSettings& settings_;
    Console& console_;
    std::vector<offload::DriveIo> drive_io_;     ///< of each --nvme folder
    std::unique_ptr<offload::StepTrace> trace_;  ///< null: none is wanted
    offload::TraceRow steps_row_;
    offload::OffloadEngine engine_;
    std::unique_ptr<StepPasses> passes_;
    std::vector<std::size_t> training_uses_;
    CommitInterval interval_;
    ProgressMeter meter_;
    std::vector<std::int32_t> tokens_;
    std::optional<RunClock> clock_;
    std::optional<MetricsLog> log_;

    RunProgress progress_;
    RunProgress session_start_;
    std::optional<std::uint64_t> resumed_from_;
    std::uint64_t committed_iteration_ = 0;
    Clock::time_point started_, step_end_, committed_at_;
    double session_s_ = 0;
    PassTimes phases_;
    cuda::DeviceStatistics device_before_;
    offload::OffloadStatistics offload_before_;  ///< at the first step
};

Trainer::Trainer(RunSetup& setup, Console& console)
    : impl_(std::make_unique<Impl>(setup, console)) {}
Trainer::~Trainer() = default;

TrainResult Trainer::run(const StopRequest& stop) {
    return impl_->run(stop);
}

}  // namespace spillway::engine
