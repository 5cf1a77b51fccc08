// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/client/tensor_engine.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "offload/detail/client/client_checks.h"
#include "offload/detail/state/bootstrap.h"
#include "offload/detail/state/folder_checks.h"
#include "offload/detail/state/scratch_file.h"
#include "offload/disk_room.h"

namespace spillway::offload::detail {
namespace {

/// Before anything is made. The extents of a run that is there have their room already.
void check_disk(const TensorOptimizerOptions& options, std::uint64_t needed_bytes) {
    if (needed_bytes == 0 || (!options.out.empty() && StateFolder::holds_run(options.out)))
        return;
    std::vector<std::filesystem::path> folders{options.nvme.empty() ? options.out : options.nvme};
    folders.insert(folders.end(), options.more_nvme.begin(), options.more_nvme.end());
    require_disk_room(folders, needed_bytes);
}

void check_average_rule(const std::optional<AverageRule>& rule) {
    if (!rule)
        return;
    if (rule->every == 0)
        throw std::invalid_argument(
            "an average takes up weights after each 0 updates: take 1 or more");
    static_cast<void>(rule->coefficients(rule->every));
}

TensorPlan make_plan(const ElementOrder& order, const std::vector<Parameter>& parameters,
                     const HyperGroups& groups, TensorOptimizerOptions& options) {
    if (const auto drives = check_drives(options.nvme, options.more_nvme); !drives.empty()) {
        options.nvme = drives.front();
        options.more_nvme.assign(drives.begin() + 1, drives.end());
    }
    if (options.threads == 0)
        throw std::invalid_argument("threads is 0 and must be at least 1");
    check_average_rule(options.average);
    const auto types = types_of(parameters);
    const auto needs = groups.needs();
    return make_tensor_plan(
        order, types,
        {.state_planes = needs.state_planes,
         .passes = needs.passes,
         .second_moments = groups.second_moments(),
         .state = options.state,
         .averages = options.average ? WeightAverages::kept : WeightAverages::none,
         .host_bytes = options.host_bytes,
         .nvme = options.nvme.empty() ? NvmeTier::absent : NvmeTier::present,
         .drives = 1 + options.more_nvme.size(),
         .commits = options.out.empty() ? Commits::never : Commits::possible,
         .chunk_bytes = options.chunk_bytes,
         .windows = options.windows});
}

}  // namespace

void TensorEngine::check_room(const std::vector<Parameter>& parameters, const HyperGroups& groups,
                              TensorOptimizerOptions options) {
    groups.check(options.state);
    const ElementOrder order(tensor_specs(parameters));
    const auto plan = make_plan(order, parameters, groups, options);
    check_disk(options, plan.update.disk_bytes);
}

TensorEngine::TensorEngine(std::vector<Parameter> parameters, HyperGroups groups,
                           TensorOptimizerOptions options)
    : parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      options_(std::move(options)),
      order_(tensor_specs(parameters_)),
      plan_(checked_plan()),
      ledger_(plan_.update.host_bytes),
      trace_(trace_updates(options_.trace)),
      planes_(plan_.update, order_.tiles(), ledger_),
      staging_(plan_.update, planes_, HomelessGradients::elsewhere, ledger_),
      queues_(1 + options_.more_nvme.size(), options_.io, staging_.pieces(), options_.trace),
      board_(monitor_, plan_.update.chunks),
      threads_(options_.threads, options_.isa),
      work_(ledger_.arena("work buffers", plan_.work_bytes)),
      memory_(make_update_memory(order_, plan_.update.passes, plan_.update.second_moments)),
      gradients_(new_gradients()) {
    for (const auto& parameter : parameters_)
        tensors_.push_back({parameter.type, parameter.data, parameter.group});
    open_store();
    access_.emplace(*store_, planes_, plan_.update, work_.bytes());
    pipeline_.emplace(
        UpdatePipeline::Context{monitor_, board_, *store_, planes_, staging_, plan_.update, order_,
                                nullptr, committer_ ? &*committer_ : nullptr, update_time_,
                                queues_.ended(), trace_},
        all_chunks());
    if (!must_recover_)
        start(0);
}

TensorEngine::~TensorEngine() {
    // An update under way writes the client's weights: let it end, unless it waits for
    // gradients that will not come any more.
    try {
        if (!streaming_)
            pipeline_->wait_idle();
    } catch (...) {  // the object is poisoned; whoever asked has been told
    }
    monitor_.poison(std::make_exception_ptr(std::runtime_error("the optimizer was closed")));
}

void TensorEngine::wait() {
    monitor_.throw_if_poisoned();
    require_no_stream("wait");
    pipeline_->wait_idle();
}

bool TensorEngine::wait(std::chrono::milliseconds limit) {
    monitor_.throw_if_poisoned();
    require_no_stream("wait");
    return pipeline_->wait_idle(limit);
}

std::optional<TensorCommit> TensorEngine::recover() {
    monitor_.throw_if_poisoned();
    if (!must_recover_)
        return std::nullopt;
    try {
        return load_commit();
    } catch (...) {
        monitor_.poison(std::current_exception());
        throw;
    }
}

TensorCommit TensorEngine::load_commit() {
    const auto& table = run_->recovered()->table;
    store_->load(table);
    committer_->load(table);
    for (TensorId tensor = 0; tensor < tensors_.size(); ++tensor)
        tensors_[tensor].steps = table.tensor_steps[tensor];
    if (memory_.factored)
        memory_.factored->values() = table.factors;
    load_resident_planes({*store_, planes_, plan_.update, threads_, work_.bytes()});
    weights_->load(*store_);
    TensorCommit note{table.iteration, table.client_state};
    must_recover_ = false;
    start(table.update);
    run_->let_recovered_go();
    return note;
}

void TensorEngine::begin_commit(const TensorCommit& note) {
    check_ready("begin_commit");
    if (!committer_)
        throw std::logic_error(
            "begin_commit: the optimizer was made without a folder for commits (out)");
    if (note.client_state.size() > CommitTable::client_state_limit_bytes)
        throw std::invalid_argument(
            fmt::format("the client state has {} bytes; at most {} are kept",
                        note.client_state.size(), CommitTable::client_state_limit_bytes));
    wait();
    for (TensorId tensor = 0; tensor < tensors_.size(); ++tensor)
        tensor_steps_[tensor] = tensors_[tensor].steps;
    if (client_writes_state_)
        committer_->after_update();
    pipeline_->request_commit({note.iteration, note.client_state}, version_);
}

TensorPlan TensorEngine::checked_plan() {
    groups_.check(options_.state);
    check_parameters(parameters_, order_, groups_.size());
    return make_plan(order_, parameters_, groups_, options_);
}

void TensorEngine::open_store() {
    check_disk(options_, plan_.update.disk_bytes);
    if (!options_.out.empty())
        open_durable_store();
    else {
        auto [files, map] = open_scratch_files();
        store_.emplace(std::move(files), std::move(map), order_, Durability::off, plan_.stored);
    }
    ledger_.count("tables",
                  2 * tile_store_bytes(order_.tiles(), plan_.stored) +
                      static_cast<std::size_t>(order_.tiles()) * 16 +
                      (run_ ? run_->log().buffer_bytes() + table_capacity_bytes(shape()) : 0) +
                      extent_map_bytes(shape().places));
    if (const auto item =
            update_memory_item(order_, plan_.update.passes, plan_.update.second_moments))
        ledger_.count(item->name, item->bytes);
    if (!must_recover_)
        store_->assume_zeros();
}

OpenDrives TensorEngine::open_scratch_files() const {
    ExtentMap map(order_.tiles(), Durability::off, plan_.stored,
                  region_tiles_for(order_.tiles(), queues_.size()));
    if (plan_.update.disk_bytes == 0)
        return {{}, std::move(map)};
    std::vector<nvme::DirectFile> files;
    for (const auto& folder : folders())
        files.push_back(make_scratch_file(folder));
    return open_drives(queues_, std::move(files), std::move(map));
}

std::vector<std::filesystem::path> TensorEngine::folders() const {
    std::vector<std::filesystem::path> all{options_.nvme};
    all.insert(all.end(), options_.more_nvme.begin(), options_.more_nvme.end());
    return all;
}

DriveRatesSeen TensorEngine::drive_rates() const {
    return options_.io.drive_rates ? options_.io.drive_rates : RatesSeen(queues_);
}

void TensorEngine::open_durable_store() {
    run_.emplace(queues_,
                 DurableRun::Request{
                     options_.out,
                     options_.nvme,
                     options_.more_nvme,
                     tensor_specs(parameters_),
                     plan_.stored,
                     options_.average ? std::optional(basis_of(*options_.average)) : std::nullopt,
                     plan_.update.second_moments,
                     options_.client_settings,
                     {.io = options_.io}});
    must_recover_ = run_->recovered().has_value();
    auto [files, map] = run_->open_extents();
    store_.emplace(std::move(files), std::move(map), order_, Durability::on, plan_.stored,
                   drive_rates());
    tensor_steps_.resize(parameters_.size());
    weights_.emplace(ClientWeightImage::Context{order_, planes_, plan_.update, threads_, tensors_,
                                                work_.bytes()});
    committer_.emplace(Committer::Context{run_->log(), run_->folder(), *store_, planes_,
                                          plan_.update, threads_, Durability::on, tensor_steps_,
                                          memory_.factored ? &memory_.factored->values() : nullptr,
                                          &*weights_, trace_.commit});
}

CommitTableShape TensorEngine::shape() const {
    return {order_.tiles(), static_cast<std::uint32_t>(parameters_.size()), plan_.stored,
            place_count(order_.tiles(), run_ ? Durability::on : Durability::off,
                        region_tiles_for(order_.tiles(), queues_.size())),
            factor_values(order_, plan_.update.second_moments)};
}

std::vector<std::uint64_t> TensorEngine::all_chunks() const {
    std::vector<std::uint64_t> chunks(plan_.update.chunks);
    for (std::uint64_t chunk = 0; chunk < chunks.size(); ++chunk)
        chunks[chunk] = chunk;
    return chunks;
}

void TensorEngine::start(std::uint64_t version) {
    version_ = version;
    board_.reset(version);
    pipeline_->start();
}

void TensorEngine::check_tensor(TensorId tensor) const {
    if (tensor >= parameters_.size())
        throw std::invalid_argument(
            fmt::format("tensor {} is asked for; there are {}", tensor, parameters_.size()));
}

void TensorEngine::check_ready(const char* what) {
    monitor_.throw_if_poisoned();
    if (must_recover_)
        throw std::logic_error(
            fmt::format("{}: {} holds a commit; call recover() first, or use an empty folder", what,
                        options_.out.string()));
    require_no_stream(what);
}

void TensorEngine::require_no_stream(const char* what) const {
    if (streaming_)
        throw std::logic_error(
            fmt::format("{}: a streamed step is under way; call end_gradients() first", what));
}

TensorOptimizerStatistics TensorEngine::statistics() const {
    TensorOptimizerStatistics all;
    const auto io = queues_.sum();
    all.nvme_read_bytes = io.read_bytes;
    all.commit_bytes = committer_ ? committer_->commit_bytes() : 0;
    all.nvme_written_bytes = io.written_bytes - std::min(io.written_bytes, all.commit_bytes);
    if (!options_.nvme.empty())
        all.drives = drive_statistics(queues_, folders(), store_->copies_on_drives());
    all.moved_regions = store_->moved_regions();
    if (run_ && run_->relocation())
        all.relocated_bytes = run_->relocation()->bytes;
    all.host_bytes = ledger_.total_bytes();
    for (std::uint64_t chunk = 0; chunk < plan_.update.chunks; ++chunk) {
        const auto tiles = plan_.update.chunk_range(chunk, order_.tiles()).size();
        for (const auto plane : plan_.update.planes_of(chunk)) {
            all.state_bytes += tiles * tile_bytes(plane);
            if (planes_.plane(plane, chunk) != nullptr)
                all.resident_state_bytes += tiles * tile_bytes(plane);
        }
    }
    const auto factors = factor_values(order_, plan_.update.second_moments) * sizeof(float);
    all.state_bytes += factors;
    all.resident_state_bytes += factors;
    all.update_busy_s = update_time_.seconds(StallCause::cpu);
    all.update_wall_s = pipeline_->wall_s();
    all.stall_nvme_read_s = update_time_.seconds(StallCause::nvme_read);
    all.stall_nvme_write_s = update_time_.seconds(StallCause::nvme_write);
    all.stall_gradient_s = update_time_.seconds(StallCause::link);
    return all;
}

}  // namespace spillway::offload::detail
