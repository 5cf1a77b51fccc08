// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/offload_engine.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "offload/commit_log.h"
#include "offload/detail/activations/activation_mover.h"
#include "offload/detail/drives/drive_files.h"
#include "offload/detail/gradients/gradient_collector.h"
#include "offload/detail/gradients/gradient_spill.h"
#include "offload/detail/placement/chunk_order.h"
#include "offload/detail/placement/memory_ledger.h"
#include "offload/detail/state/bootstrap.h"
#include "offload/detail/state/committer.h"
#include "offload/detail/state/folder_checks.h"
#include "offload/detail/state/master_reader.h"
#include "offload/detail/trace/group_trace.h"
#include "offload/detail/update/training_update.h"
#include "offload/detail/update/update_pipeline.h"
#include "offload/detail/update/update_rules.h"
#include "offload/detail/weights/unit_slots.h"
#include "offload/detail/weights/weight_streamer.h"

namespace spillway::offload {
namespace {

using detail::StallCause;

}  // namespace

class OffloadEngine::Impl {
  public:
    Impl(StateFolder folder, ElementOrder order, std::vector<Unit> units, cuda::Device& device,
         cuda::Stream& compute, OffloadPlan plan, OffloadOptions options)
        : folder_(std::move(folder)),
          order_(std::move(order)),
          units_(std::move(units)),
          plan_(std::move(plan)),
          options_(std::move(options)),
          device_(device),
          compute_(compute),
          devices_(options_.group_ranks),
          ledger_(plan_.host_bytes),
          trace_(open_trace()),
          planes_(plan_, order_.tiles(), ledger_),
          staging_(plan_, planes_, homeless_gradients(), ledger_),
          queues_(folder_.extents_folders().size(), options_.io, staging_.pieces(), options_.trace),
          store_(open_store()),
          board_(monitor_, plan_.chunks),
          log_(queues_.front(), folder_.folder(), folder_.manifest().run, shape(),
               CommitLog::start_for(folder_.folder()), folder_.manifest().generation),
          tensor_steps_(order_.tensors().size(), 0),
          memory_(detail::make_update_memory(order_, plan_.passes, plan_.second_moments)) {
        if (plan_.planes.contains(Plane::average) != options_.average.has_value())
            throw std::logic_error("a plan has a plane for an average of the weights, or has none");
        detail::check_planes(folder_, plan_.planes, plan_.second_moments);
        count_tables();
        for (const auto& run : planes_.copied())
            registrations_.push_back(device_.register_host(run.data(), run.size()));
        work_ = ledger_.arena("work buffers", detail::bootstrap_bytes(plan_));
        if (options_.timing == UpdateTiming::after_norm)
            spill_.emplace(queues_, folder_.extents_folders(), plan_, order_.tiles(), shares());
        auto* const spill = spill_ ? &*spill_ : nullptr;
        threads_ = std::make_unique<detail::UpdateThreads>(options_.threads, options_.isa);
        committer_ = std::make_unique<detail::Committer>(detail::Committer::Context{
            log_, folder_, store_, planes_, plan_, *threads_, options_.durability, tensor_steps_,
            memory_.factored ? &memory_.factored->values() : nullptr, nullptr, trace_.commit});
        streamer_ = std::make_unique<detail::WeightStreamer>(
            detail::WeightStreamer::Context{monitor_, board_, store_, planes_, plan_, device_,
                                            compute_, stream_stalls(), update_time_, options_.isa,
                                            trace_},
            detail::tiles_of_units(order_, units_), ledger_);
        collector_ = std::make_unique<detail::GradientCollector>(
            detail::GradientCollector::Context{monitor_, order_, units_, planes_, plan_, spill,
                                               device_, compute_, stream_stalls(), options_.isa,
                                               options_.norms, trace_},
            ledger_);
        pipeline_ = std::make_unique<detail::UpdatePipeline>(
            detail::UpdatePipeline::Context{monitor_, board_, store_, planes_, staging_, plan_,
                                            order_, spill, committer_.get(), update_time_,
                                            queues_.ended(), trace_},
            options_.timing == UpdateTiming::after_norm
                ? detail::forward_order(plan_)
                : detail::completion_order(order_, units_, plan_, plan_.gradient_uses));
    }

    ~Impl() {
        // Whoever still waits for something that will not come any more is let go.
        monitor_.poison(std::make_exception_ptr(std::runtime_error("the engine was closed")));
    }

    std::optional<RecoveredRun> recover() {
        const auto found = log_.recover();
        if (!found) {
            folder_.check_commit(0);  // records that are gone are not a run that never committed
            return std::nullopt;
        }
        const auto& table = found->table;
        if (found->condition == CommitLog::Recovered::Condition::dirty)
            throw FolderRefused(
                folder_.folder().string() +
                ": this run was made with --durable off and did not end cleanly, so what its last "
                "commit names was "
                "partly overwritten; it cannot be resumed. Start again in an empty folder");
        folder_.check_commit(table.sequence, found->warning);
        store_.load(table);
        tensor_steps_ = table.tensor_steps;
        if (memory_.factored)
            memory_.factored->values() = table.factors;
        committer_->load(table);
        detail::load_resident_planes(bootstrap());
        version_ = table.update;
        board_.reset(version_);
        pipeline_->start();
        return RecoveredRun{table.iteration, table.update, table.client_state, found->warning};
    }

    void initialise(const InitialValues& fill, const CommitNote& note) {
        detail::fill_new_run(bootstrap(), fill);
        committer_->mark_written();
        committer_->commit(note, 0);
        board_.reset(0);
        pipeline_->start();
    }

    void begin_pass(std::vector<std::size_t> uses, WeightKind kind) {
        monitor_.throw_if_poisoned();
        if (kind == WeightKind::averaged)
            settle_average();
        streamer_->begin_pass(std::move(uses), version_, kind);
    }

    const float* acquire_weights(std::size_t unit) {
        const auto begin = unit_range(order_, units_.at(unit)).begin;
        return streamer_->acquire(unit) + begin % tile_elements;
    }
    void release_weights(std::size_t unit) { streamer_->release(unit); }

    std::unique_ptr<ActivationStore> open_activations(cuda::Device& device, cuda::Stream& compute) {
        return open_activations(device, compute, stalls_, trace_);
    }
    std::unique_ptr<ActivationStore> open_activations(cuda::Device& device, cuda::Stream& compute,
                                                      detail::StallTotals& stalls,
                                                      const detail::EngineTrace& trace) {
        if (plan_.activations.moved_bytes() == 0)
            return nullptr;
        const detail::ActivationMover::Context context{
            monitor_, plan_.activations, device, compute, stalls, trace};
        return std::make_unique<detail::ActivationMover>(
            context,
            detail::ActivationSpill(queues_, folder_.extents_folders(), plan_.activations,
                                    shares()),
            ledger_);
    }

    float* acquire_gradient(std::size_t unit) {
        if (!step_open_)
            open_step();
        return collector_->acquire(unit);
    }
    void release_gradient(std::size_t unit) { collector_->release(unit); }

    GradientSummary finish_gradients() {
        const detail::StallTimer timer(stalls_, StallCause::cpu, trace_.driver_stalls);
        auto summary = collector_->finish();
        if (options_.timing == UpdateTiming::as_completed)
            step_open_ = false;
        return summary;
    }

    void begin_update(const UpdateStep& step) {
        wait_idle();
        if (options_.timing == UpdateTiming::as_completed)
            open_step();
        else
            step_open_ = false;
        auto* const spill = spill_ ? &*spill_ : nullptr;
        ++version_;
        const detail::TrainingUpdate::Context context{
            store_,
            *collector_,
            spill,
            *committer_,
            *threads_,
            tensor_steps_,
            options_.rounding_seed,
            step.most_gradient,
            options_.average ? options_.average->coefficients(version_) : std::nullopt};
        pipeline_->begin_update(std::make_unique<detail::TrainingUpdate>(context, rules(step)),
                                version_);
    }
    void skip_update() {
        monitor_.throw_if_poisoned();
        step_open_ = false;
    }

    void request_commit(const CommitNote& note) {
        monitor_.throw_if_poisoned();
        pipeline_->request_commit(note, version_);
    }
    void wait_idle() {
        {
            const detail::StallTimer timer(stalls_, StallCause::cpu, trace_.driver_stalls);
            pipeline_->wait_updated();
        }
        const detail::StallTimer timer(stalls_, StallCause::commit, trace_.driver_stalls);
        pipeline_->wait_idle();
    }

    [[nodiscard]] std::uint64_t update() const noexcept { return version_; }
    [[nodiscard]] bool has_average() const noexcept {
        return options_.average && options_.average->is_there(version_);
    }

    void visit_masters(const MasterVisitor& visit, WeightKind kind) {
        wait_idle();
        if (kind == WeightKind::averaged)
            settle_average();
        const auto resident = [this](Plane plane, std::uint64_t tile) -> const std::byte* {
            const auto chunk = tile / plan_.chunk_tiles;
            const auto* const data = planes_.plane(plane, chunk);
            return data == nullptr ? nullptr
                                   : data + (tile - chunk * plan_.chunk_tiles) * tile_bytes(plane);
        };
        detail::MasterReader(store_, resident, options_.isa, work_.bytes())
            .visit({0, order_.length()}, kind, visit);
    }

    [[nodiscard]] OffloadStatistics statistics() const;
    [[nodiscard]] const StateFolder& folder() const noexcept { return folder_; }
    [[nodiscard]] std::string_view io_backend_name() const noexcept {
        return queues_.front().backend_name();
    }
    [[nodiscard]] std::vector<std::string> io_notes() const {
        auto notes = queues_.notes();
        if (!staging_.note().empty())
            notes.push_back(staging_.note());
        return notes;
    }
    [[nodiscard]] TraceRow compute_row(unsigned rank) const noexcept {
        return devices_.empty() ? trace_.compute : devices_.at(rank).trace.compute;
    }
    [[nodiscard]] detail::DeviceRecord& device_record(unsigned rank) {
        if (rank >= devices_.size())
            throw std::logic_error(fmt::format(
                "rank {} is asked for of an engine for a group of {}", rank, devices_.size()));
        return devices_[rank];
    }
    [[nodiscard]] StallCause weights_kept_by() const noexcept { return streamer_->kept_by(); }

  private:
    [[nodiscard]] CommitTableShape shape() const {
        return {order_.tiles(), static_cast<std::uint32_t>(order_.tensors().size()), plan_.planes,
                detail::place_count(order_.tiles(), options_.durability,
                                    folder_.manifest().region_tiles),
                factor_values(order_, plan_.second_moments)};
    }
    [[nodiscard]] detail::EngineTrace open_trace() {
        if (!devices_.empty()) {
            const auto inputs = plan_.activations.moved_bytes() != 0 ? detail::LayerInputs::leave
                                                                     : detail::LayerInputs::stay;
            auto all = detail::trace_group(options_.trace, options_.group_ranks, inputs);
            for (std::size_t rank = 0; rank < devices_.size(); ++rank)
                devices_[rank].trace = all.devices[rank];
            return all.engine;
        }
        auto rows = detail::trace_engine(options_.trace, device_.memory_kind());
        if (plan_.activations.moved_bytes() != 0)
            detail::trace_activations(options_.trace, rows);
        return rows;
    }
    /// In a group it is not the client that acquires units here: those who do say for themselves
    /// what a device waits for.
    [[nodiscard]] detail::StallTotals& stream_stalls() noexcept {
        return devices_.empty() ? stalls_ : unit_waits_;
    }
    [[nodiscard]] detail::TileStore open_store() {
        auto drives =
            detail::open_drives(queues_, folder_.open_extents(nvme::OpenMode::create_or_open),
                                detail::ExtentMap(order_.tiles(), options_.durability, plan_.planes,
                                                  folder_.manifest().region_tiles));
        return {std::move(drives.files),
                std::move(drives.map),
                order_,
                options_.durability,
                plan_.planes,
                options_.io.drive_rates ? options_.io.drive_rates : detail::RatesSeen(queues_)};
    }
    /// Of what each drive holds; any one number with one drive.
    [[nodiscard]] std::vector<double> shares() const {
        const auto copies = store_.copies_on_drives();
        return copies.size() == 1 ? std::vector<double>{1.0}
                                  : std::vector<double>(copies.begin(), copies.end());
    }
    [[nodiscard]] detail::HomelessGradients homeless_gradients() const noexcept {
        return options_.timing == UpdateTiming::after_norm ? detail::HomelessGradients::spilled
                                                           : detail::HomelessGradients::elsewhere;
    }
    void count_tables() {
        ledger_.count("tables",
                      2 * detail::tile_store_bytes(order_.tiles(), plan_.planes) +
                          log_.buffer_bytes() + table_capacity_bytes(shape()) +
                          detail::gradient_scans_bytes(order_.tiles(), order_.tensors().size()) +
                          detail::extent_map_bytes(shape().places));
        if (const auto item =
                detail::update_memory_item(order_, plan_.passes, plan_.second_moments))
            ledger_.count(item->name, item->bytes);
    }
    detail::BootstrapContext bootstrap() {
        return {store_, planes_, plan_, *threads_, work_.bytes()};
    }

    void open_step() {
        pipeline_->wait_updated();
        collector_->begin_step();
        step_open_ = true;
    }
    /// Its plane is written as moments are: nobody waits for one chunk of it.
    void settle_average() {
        if (!has_average())
            throw std::logic_error(
                fmt::format("after {} updates there is no average of the weights", version_));
        wait_idle();
        monitor_.throw_if_poisoned();
    }

    detail::UpdateRules rules(const UpdateStep& step) {
        std::vector<detail::TensorStep> tensors;
        for (TensorId tensor = 0; tensor < order_.tensors().size(); ++tensor)
            tensors.push_back(
                {order_.tensors()[tensor].group, tensor_steps_[tensor] + 1,
                 step.tensor_scales.empty() ? step.gradient_scale : step.tensor_scales.at(tensor)});
        return {order_, step.groups, tensors, memory_};
    }

    StateFolder folder_;
    ElementOrder order_;
    std::vector<Unit> units_;
    OffloadPlan plan_;
    OffloadOptions options_;
    cuda::Device& device_;
    cuda::Stream& compute_;

    detail::Monitor monitor_;
    detail::StallTotals stalls_;
    detail::StallTotals unit_waits_;             ///< of who brings units to a group
    std::vector<detail::DeviceRecord> devices_;  ///< of a group, by rank
    detail::StallTotals update_time_;
    detail::MemoryLedger ledger_;
    nvme::HugePageArena work_;
    detail::EngineTrace trace_;
    detail::HostPlanes planes_;
    detail::UpdateStaging staging_;
    detail::DriveQueues queues_;  // after the memory that they move and may hold on to
    detail::TileStore store_;
    std::vector<std::unique_ptr<cuda::HostRegistration>> registrations_;  ///< of planes_
    detail::ChunkBoard board_;
    CommitLog log_;
    std::optional<detail::GradientSpill> spill_;
    std::vector<std::uint64_t> tensor_steps_;  ///< updates that each has seen; the update writes it
    detail::UpdateMemory memory_;
    std::unique_ptr<detail::UpdateThreads> threads_;
    std::unique_ptr<detail::Committer> committer_;
    std::unique_ptr<detail::WeightStreamer> streamer_;
    std::unique_ptr<detail::GradientCollector> collector_;
    std::unique_ptr<detail::UpdatePipeline> pipeline_;

    std::uint64_t version_ = 0;
    bool step_open_ = false;
};

OffloadStatistics OffloadEngine::Impl::statistics() const {
    OffloadStatistics all;
    all.stall = stalls_.all();
    for (const auto& device : devices_)
        all.stall_of_devices.push_back(device.stalls.all() + all.stall);
    all.update_busy_s = update_time_.seconds(StallCause::cpu);
    all.update_wall_s = pipeline_->wall_s();
    all.commit_wall_s = committer_->wall_s();
    all.commit_write_s = committer_->write_s();
    all.commit_flush_s = committer_->flush_s();
    const auto io = queues_.sum();
    all.nvme_read_bytes = io.read_bytes;
    all.commit_bytes = committer_->commit_bytes();
    all.nvme_written_bytes = io.written_bytes - std::min(io.written_bytes, all.commit_bytes);
    all.commits = committer_->commits();
    all.host_peak_bytes = ledger_.total_bytes();
    all.drives =
        detail::drive_statistics(queues_, folder_.extents_folders(), store_.copies_on_drives());
    all.moved_regions = store_.moved_regions();
    return all;
}

OffloadEngine::OffloadEngine(StateFolder folder, ElementOrder order, std::vector<Unit> units,
                             cuda::Device& device, cuda::Stream& compute, OffloadPlan plan,
                             OffloadOptions options)
    : impl_(std::make_unique<Impl>(std::move(folder), std::move(order), std::move(units), device,
                                   compute, std::move(plan), std::move(options))) {}
OffloadEngine::~OffloadEngine() = default;

std::optional<RecoveredRun> OffloadEngine::recover() {
    return impl_->recover();
}
void OffloadEngine::initialise(const InitialValues& fill, const CommitNote& note) {
    impl_->initialise(fill, note);
}
void OffloadEngine::begin_pass(std::vector<std::size_t> unit_uses, WeightKind kind) {
    impl_->begin_pass(std::move(unit_uses), kind);
}
bool OffloadEngine::has_average() const noexcept {
    return impl_->has_average();
}
const float* OffloadEngine::acquire_weights(std::size_t unit) {
    return impl_->acquire_weights(unit);
}
void OffloadEngine::release_weights(std::size_t unit) {
    impl_->release_weights(unit);
}
std::unique_ptr<ActivationStore> OffloadEngine::open_activations(cuda::Device& device,
                                                                 cuda::Stream& compute) {
    return impl_->open_activations(device, compute);
}
std::unique_ptr<ActivationStore> OffloadEngine::open_activations(cuda::Device& device,
                                                                 cuda::Stream& compute,
                                                                 unsigned rank) {
    auto& record = impl_->device_record(rank);
    return impl_->open_activations(device, compute, record.stalls, record.trace);
}
float* OffloadEngine::acquire_gradient(std::size_t unit) {
    return impl_->acquire_gradient(unit);
}
void OffloadEngine::release_gradient(std::size_t unit) {
    impl_->release_gradient(unit);
}
GradientSummary OffloadEngine::finish_gradients() {
    return impl_->finish_gradients();
}
void OffloadEngine::begin_update(const UpdateStep& step) {
    impl_->begin_update(step);
}
void OffloadEngine::skip_update() {
    impl_->skip_update();
}
void OffloadEngine::request_commit(const CommitNote& note) {
    impl_->request_commit(note);
}
void OffloadEngine::wait_idle() {
    impl_->wait_idle();
}
std::uint64_t OffloadEngine::update() const noexcept {
    return impl_->update();
}
void OffloadEngine::visit_masters(const MasterVisitor& visit, WeightKind kind) {
    impl_->visit_masters(visit, kind);
}
OffloadStatistics OffloadEngine::statistics() const {
    return impl_->statistics();
}
const StateFolder& OffloadEngine::folder() const noexcept {
    return impl_->folder();
}
std::string_view OffloadEngine::io_backend_name() const noexcept {
    return impl_->io_backend_name();
}
std::vector<std::string> OffloadEngine::io_notes() const {
    return impl_->io_notes();
}
TraceRow OffloadEngine::compute_row(unsigned rank) const noexcept {
    return impl_->compute_row(rank);
}
detail::DeviceRecord& OffloadEngine::device_record(unsigned rank) {
    return impl_->device_record(rank);
}
detail::StallCause OffloadEngine::weights_kept_by() const noexcept {
    return impl_->weights_kept_by();
}

}  // namespace spillway::offload
