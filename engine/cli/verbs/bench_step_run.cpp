// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_step_run.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/cli/verbs/bench_adam_run.h"
#include "engine/cli/verbs/bench_step_model.h"
#include "engine/measure/drive_probe.h"
#include "engine/measure/median.h"
#include "nvme/huge_page_arena.h"
#include "offload/state_folder.h"
#include "offload/tensor_optimizer.h"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t probe_buffer_bytes = std::size_t{32} << 20;
constexpr double probe_s = 0.6;
/// Of the kernel's own measurement, at most.
constexpr std::uint64_t kernel_elements = std::uint64_t{16} << 20;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Where a durable run keeps its files: gone with it, and its extents on the drives too.
class RunFolder {
  public:
    explicit RunFolder(const StepBenchOptions& options) {
        if (!options.nvme.empty() && options.durability == offload::Durability::on)
            path_ = options.nvme.front() / fmt::format("spillway.bench-step.{}", ::getpid());
    }
    ~RunFolder() {
        if (path_.empty())
            return;
        std::error_code ignored;  // the figures stand, and `clean` finds what stays
        for (const auto& extents : extents_folders())
            fs::remove_all(extents, ignored);
        fs::remove_all(path_, ignored);
    }
    RunFolder(const RunFolder&) = delete;
    RunFolder& operator=(const RunFolder&) = delete;

    [[nodiscard]] const fs::path& path() const noexcept { return path_; }

  private:
    [[nodiscard]] std::vector<fs::path> extents_folders() const {
        try {
            return offload::StateFolder::open(path_, offload::LockMode::exclusive)
                .extents_folders();
        } catch (const std::exception&) {  // it was never made
            return {};
        }
    }

    fs::path path_;  ///< empty: it keeps none
};

offload::TensorOptimizerOptions optimizer_options(const StepBenchOptions& options,
                                                  offload::StepTrace* trace) {
    offload::TensorOptimizerOptions made;
    made.host_bytes = options.host_bytes;
    if (!options.nvme.empty()) {
        made.nvme = options.nvme.front();
        made.more_nvme.assign(options.nvme.begin() + 1, options.nvme.end());
    }
    made.state = options.state;
    made.chunk_bytes = options.chunk_bytes;
    made.windows = options.windows;
    made.threads = options.threads;
    made.isa = options.isa;
    made.io.drives = options.drive_io;
    made.trace = trace;
    return made;
}

/// The bench's own trace, if one is wanted: of the steps, with the moments in between as marks.
class BenchTrace {
  public:
    explicit BenchTrace(const StepBenchOptions& options) {
        if (options.trace.empty())
            return;
        trace_.emplace(options.trace, [](const std::string&) {});  // the summary tells it too
        row_ = trace_->add_mark_row("bench");
    }
    [[nodiscard]] offload::StepTrace* get() noexcept { return trace_ ? &*trace_ : nullptr; }
    [[nodiscard]] offload::TraceRow row() const noexcept { return row_; }
    void start() {
        if (trace_)
            trace_->start();
    }
    void finish(StepBenchResult& result) {
        if (!trace_)
            return;
        result.trace = trace_->finish();
        if (!result.trace->failure.empty())
            result.notes.push_back(result.trace->failure);
    }

  private:
    std::optional<offload::StepTrace> trace_;
    offload::TraceRow row_;
};

/// What is measured beside the steps.
class Machine {
  public:
    explicit Machine(const StepBenchOptions& options)
        : options_(options), probe_buffers_(options.nvme.empty() ? 0 : probe_buffer_bytes) {
        measure_kernel();
    }

    /// Once more: what it finds and found is averaged.
    void measure_kernel() {
        const AdamBenchOptions kernel{.hyper = options_.hyper,
                                      .gradient = cpu_optim::GradientType::bf16,
                                      .state = options_.state,
                                      .weights = MasterForm::split,
                                      .elements = std::min(options_.elements, kernel_elements),
                                      .threads = options_.threads,
                                      .isa = options_.isa,
                                      .pairs = 5};
        const auto measured = run_adam_bench(kernel);
        ++kernel_measurements_;
        parameters_per_s_ += (measured.parameters_per_s - parameters_per_s_) / kernel_measurements_;
        dram_bytes_per_s_ = measured.dram_bytes_per_s;
        bytes_per_parameter_ = measured.bytes_per_parameter;
    }
    [[nodiscard]] double parameters_per_s() const noexcept { return parameters_per_s_; }

    /// Of all drives together, now.
    MachineRates rates(std::vector<std::string>& notes) {
        MachineRates sum{.dram = dram_bytes_per_s_};
        for (std::size_t drive = 0; drive < options_.nvme.size(); ++drive) {
            const auto io =
                drive < options_.drive_io.size() ? options_.drive_io[drive] : offload::DriveIo{};
            const auto found = probe_drive({.folder = options_.nvme[drive],
                                            .io = io,
                                            .buffers = probe_buffers_.bytes(),
                                            .time_limit_s = probe_s});
            for (const auto& note : found.notes) {
                if (std::ranges::find(notes, note) == notes.end())
                    notes.push_back(note);
            }
            const auto rates = found.rates.value_or(DriveRates{});
            sum.nvme_read += rates.read_bytes_per_s;
            sum.nvme_write += rates.write_bytes_per_s;
            sum.nvme_mixed += rates.mixed_bytes_per_s;
        }
        return sum;
    }

    [[nodiscard]] StepBound bound(const MachineRates& rates, std::uint64_t read_bytes,
                                  std::uint64_t written_bytes) const {
        const StepDemand demand{
            .nvme_read_bytes = read_bytes,
            .nvme_written_bytes = written_bytes,
            .dram_bytes = moved_bytes(options_.elements) + read_bytes + written_bytes,
            .cpu_s = static_cast<double>(options_.elements) / parameters_per_s_};
        return step_bound(lane_times(rates, demand));
    }

  private:
    /// By an update of so many elements in memory.
    [[nodiscard]] std::uint64_t moved_bytes(std::uint64_t elements) const {
        return static_cast<std::uint64_t>(static_cast<double>(elements) * bytes_per_parameter_);
    }

    const StepBenchOptions& options_;
    nvme::HugePageArena probe_buffers_;
    int kernel_measurements_ = 0;
    double parameters_per_s_ = 0;
    double dram_bytes_per_s_ = 0;
    double bytes_per_parameter_ = 0;
};

struct TimedStep {
    double seconds = 0;
    MachineRates rates;
    std::uint64_t timed_read_bytes = 0;
    std::uint64_t timed_written_bytes = 0;
    StepBound bound;  ///< of what moved while it was timed
    /// With what was read ahead of the next step, in place of what had been of this one.
    std::uint64_t read_bytes = 0;
    std::uint64_t written_bytes = 0;
};

double step_once(offload::TensorOptimizer& optimizer, const StepBenchModel& model) {
    for (offload::TensorId tensor = 0; tensor < optimizer.parameters().size(); ++tensor)
        optimizer.give_gradient(tensor, model.gradient(tensor));
    const auto start = Clock::now();
    static_cast<void>(optimizer.begin_step({}));
    optimizer.wait();
    return seconds_since(start);
}

template <typename Value>
double median_of(const std::vector<TimedStep>& steps, Value value) {
    std::vector<double> values;
    for (const auto& step : steps)
        values.push_back(value(step));
    return median(std::move(values));
}

void note_steps(const std::vector<TimedStep>& steps, std::uint64_t elements,
                StepBenchResult& result) {
    const auto attained = [](const TimedStep& step) { return step.bound.seconds / step.seconds; };
    result.measured_s = median_of(steps, [](const auto& step) { return step.seconds; });
    result.bound_s = median_of(steps, [](const auto& step) { return step.bound.seconds; });
    result.bound_by = steps.back().bound.by;
    result.attained = median_of(steps, attained);
    result.least_attained = std::ranges::min(steps, {}, attained).bound.seconds /
                            std::ranges::min(steps, {}, attained).seconds;
    result.most_attained = std::ranges::max(steps, {}, attained).bound.seconds /
                           std::ranges::max(steps, {}, attained).seconds;
    result.nvme_bytes_per_parameter = median_of(steps, [elements](const auto& step) {
        return static_cast<double>(step.read_bytes + step.written_bytes) /
               static_cast<double>(elements);
    });
    result.rates = {
        .nvme_read = median_of(steps, [](const auto& step) { return step.rates.nvme_read; }),
        .nvme_write = median_of(steps, [](const auto& step) { return step.rates.nvme_write; }),
        .nvme_mixed = median_of(steps, [](const auto& step) { return step.rates.nvme_mixed; }),
        .dram = steps.back().rates.dram};
}

void note_state(const offload::TensorOptimizer& optimizer,
                const offload::TensorOptimizerStatistics& before, StepBenchResult& result,
                std::uint32_t steps) {
    const auto after = optimizer.statistics();
    result.stall_nvme_read_s = (after.stall_nvme_read_s - before.stall_nvme_read_s) / steps;
    result.stall_nvme_write_s = (after.stall_nvme_write_s - before.stall_nvme_write_s) / steps;
    result.state_bytes = after.state_bytes;
    result.resident_state_bytes = after.resident_state_bytes;
    result.host_bytes = after.host_bytes;
    result.io_backend = optimizer.io_backend_name();
}

}  // namespace

std::uint64_t needed_bytes(const StepBenchOptions& options) {
    constexpr std::uint64_t most_elements = std::uint64_t{1} << 44;
    if (options.elements == 0 || options.elements > most_elements)
        throw std::invalid_argument(fmt::format("{} elements were asked for: choose 1 to {}",
                                                options.elements, most_elements));
    const auto gradients =
        std::min(options.elements, bench_gradient_tensors * bench_tensor_elements);
    constexpr std::uint64_t overhead_bytes = std::uint64_t{64} << 20;
    const auto while_stepping =
        2 * (options.elements + gradients) + options.host_bytes + probe_buffer_bytes;
    const AdamBenchOptions kernel{.hyper = options.hyper,
                                  .gradient = cpu_optim::GradientType::bf16,
                                  .state = options.state,
                                  .weights = MasterForm::split,
                                  .elements = std::min(options.elements, kernel_elements)};
    return overhead_bytes + std::max(while_stepping + replay_bytes(options), needed_bytes(kernel));
}

StepBenchResult run_step_bench(const StepBenchOptions& options) {
    if (options.steps == 0)
        throw std::invalid_argument("0 steps were asked for: choose 1 or more");
    StepBenchResult result;
    Machine machine(options);
    const StepBenchModel model(options.elements);
    RunFolder folder(options);
    BenchTrace trace(options);
    auto made = optimizer_options(options, trace.get());
    made.out = folder.path();
    std::optional<offload::TensorOptimizer> owned(std::in_place, model.parameters(), options.hyper,
                                                  made);
    auto& optimizer = *owned;
    static_cast<void>(step_once(optimizer, model));  // the first write to reserved room is slower
    const auto start = optimizer.statistics();
    std::vector<TimedStep> steps;
    auto rates = machine.rates(result.notes);
    trace.start();
    while (steps.size() < options.steps && !options.stop()) {
        TimedStep step;
        step.rates = rates;
        const auto begun = optimizer.statistics();
        trace.row().begin("step", {.what = "step", .number = steps.size() + 1});
        step.seconds = step_once(optimizer, model);
        trace.row().begin("probe");
        const auto ended = optimizer.statistics();
        step.timed_read_bytes = ended.nvme_read_bytes - begun.nvme_read_bytes;
        step.timed_written_bytes = ended.nvme_written_bytes - begun.nvme_written_bytes;
        rates = machine.rates(result.notes);  // and what is read ahead of the next step has come
        const auto settled = optimizer.statistics();
        step.read_bytes = settled.nvme_read_bytes - begun.nvme_read_bytes;
        step.written_bytes = settled.nvme_written_bytes - begun.nvme_written_bytes;
        trace.row().end();
        steps.push_back(step);
    }
    trace.finish(result);
    result.interrupted = steps.size() < options.steps;
    if (result.interrupted)
        return result;
    const auto& first = steps.front();
    result.predicted_s = machine.bound(first.rates, first.read_bytes, first.written_bytes).seconds;
    note_state(optimizer, start, result, options.steps);
    result.verified_elements =
        verify_step_bench(options, optimizer, options.steps + std::uint64_t{1});
    owned.reset();             // whose memory the kernel takes now
    machine.measure_kernel();  // on either side of the steps, as the drives are
    for (auto& step : steps)
        step.bound = machine.bound(step.rates, step.timed_read_bytes, step.timed_written_bytes);
    note_steps(steps, options.elements, result);
    result.update_parameters_per_s = machine.parameters_per_s();
    return result;
}

}  // namespace spillway::engine
