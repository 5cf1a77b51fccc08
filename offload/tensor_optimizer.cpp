// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/tensor_optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "cpu_optim/split_master.h"
#include "offload/commit_log.h"
#include "offload/detail/bootstrap.h"
#include "offload/detail/client_update.h"
#include "offload/detail/client_weights.h"
#include "offload/detail/committer.h"
#include "offload/detail/folder_checks.h"
#include "offload/detail/gradient_norm.h"
#include "offload/detail/memory_ledger.h"
#include "offload/detail/plane_access.h"
#include "offload/detail/scratch_file.h"
#include "offload/detail/update_pipeline.h"
#include "offload/state_folder.h"

namespace spillway::offload {
namespace {

using detail::StallCause;

constexpr std::size_t largest_io_operation_bytes = std::size_t{1} << 20;

/// Stands for the values of a tensor that has none.
constexpr float no_elements = 0;

std::vector<TensorSpec> tensor_specs(const std::vector<Parameter>& parameters) {
    std::vector<TensorSpec> specs;
    for (const auto& parameter : parameters)
        specs.push_back({parameter.name, parameter.shape, parameter.group, 1});
    return specs;
}

std::vector<ParameterType> types_of(const std::vector<Parameter>& parameters) {
    std::vector<ParameterType> types;
    for (const auto& parameter : parameters)
        types.push_back(parameter.type);
    return types;
}

std::size_t most_state_planes(const std::vector<cpu_optim::HyperParameters>& groups) {
    std::size_t most = 0;
    for (const auto& group : groups)
        most = std::max(most, cpu_optim::state_planes(group));
    return most;
}

void check_groups(const std::vector<cpu_optim::HyperParameters>& groups) {
    if (groups.empty())
        throw std::invalid_argument("an optimizer needs at least one group of hyper-parameters");
    for (const auto& group : groups) {
        cpu_optim::check(group);
        if (group.index() != groups.front().index())
            throw std::invalid_argument(fmt::format(
                "the groups are of {} and of {}: one optimizer serves all groups",
                cpu_optim::optimizer_name(groups.front()), cpu_optim::optimizer_name(group)));
    }
}

/// The data pointer, as far as it can be judged.
void check_data(const Parameter& parameter, const void* data, std::uint64_t elements) {
    if (data == nullptr && elements != 0)
        throw std::invalid_argument(
            fmt::format("parameter '{}' has {} elements and no data", parameter.name, elements));
    const auto alignment = parameter_bytes(parameter.type);
    if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
        throw std::invalid_argument(
            fmt::format("parameter '{}' lies at address {}, which is not a multiple of {} bytes",
                        parameter.name, fmt::ptr(data), alignment));
}

void check_parameters(const std::vector<Parameter>& parameters, const ElementOrder& order,
                      std::size_t groups) {
    for (TensorId tensor = 0; tensor < parameters.size(); ++tensor) {
        const auto& parameter = parameters[tensor];
        if (parameter.group >= groups)
            throw std::invalid_argument(fmt::format("parameter '{}' is of group {}; there are {}",
                                                    parameter.name, parameter.group, groups));
        check_data(parameter, parameter.data, order.range(tensor).size());
    }
}

const char* type_name(ParameterType type) {
    return type == ParameterType::fp32 ? "fp32" : "bf16";
}

/// The folder's run must be of the same tensors and state.
void check_same_run(const Manifest& manifest, const std::vector<TensorSpec>& specs, PlaneSet stored,
                    const std::filesystem::path& out) {
    const auto refuse = [&](const std::string& what) {
        throw FolderRefused(
            fmt::format("{} holds another run: {}; use an empty folder", out.string(), what));
    };
    if (manifest.tensors.size() != specs.size())
        refuse(
            fmt::format("it has {} tensors, here are {}", manifest.tensors.size(), specs.size()));
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const auto& there = manifest.tensors[i];
        if (there.name != specs[i].name || there.shape != specs[i].shape)
            refuse(fmt::format("its tensor {} is '{}' of shape [{}], here it is '{}' of shape [{}]",
                               i, there.name, fmt::join(there.shape, ", "), specs[i].name,
                               fmt::join(specs[i].shape, ", ")));
    }
    if (manifest.planes != stored)
        refuse("its optimizer keeps other state per parameter");
    if (manifest.durability != "on")
        refuse("it was made without durable commits");
}

/// Opens the run in `out`, or makes a new one: also over one that never committed.
StateFolder open_folder(const TensorOptimizerOptions& options, const std::vector<TensorSpec>& specs,
                        PlaneSet stored) {
    if (StateFolder::holds_run(options.out)) {
        auto folder = StateFolder::open(options.out, LockMode::exclusive);
        check_same_run(folder.manifest(), specs, stored, options.out);
        return folder;
    }
    return StateFolder::create(options.out, options.nvme, specs, "on", options.client_settings,
                               stored);
}

}  // namespace

class TensorOptimizer::Impl {
  public:
    Impl(std::vector<Parameter> parameters, std::vector<cpu_optim::HyperParameters> groups,
         TensorOptimizerOptions options)
        : parameters_(std::move(parameters)),
          groups_(std::move(groups)),
          options_(std::move(options)),
          order_(tensor_specs(parameters_)),
          plan_(checked_plan()),
          ledger_(plan_.update.host_bytes),
          queue_(backend(), {options_.io_depth, largest_io_operation_bytes}),
          planes_(plan_.update, order_.tiles(), ledger_),
          board_(monitor_, plan_.update.chunks),
          threads_(options_.threads, options_.isa),
          work_(ledger_.arena("work buffers", plan_.work_bytes)),
          gradients_(new_gradients()) {
        for (const auto& parameter : parameters_)
            tensors_.push_back({parameter.type, parameter.data, parameter.group});
        open_store();
        access_.emplace(*store_, planes_, plan_.update, work_.bytes());
        pipeline_.emplace(
            detail::UpdatePipeline::Context{monitor_, board_, *store_, planes_, plan_.update,
                                            order_, nullptr, committer_ ? &*committer_ : nullptr,
                                            update_time_},
            all_chunks(), ledger_);
        if (!must_recover_)
            start(0);
    }

    ~Impl() {
        // An update under way writes the client's weights: let it end, unless it waits for
        // gradients that will not come any more.
        try {
            if (!streaming_)
                pipeline_->wait_idle();
        } catch (...) {  // the object is poisoned; whoever asked has been told
        }
        monitor_.poison(std::make_exception_ptr(std::runtime_error("the optimizer was closed")));
    }

    std::vector<Parameter> parameters_;
    std::vector<cpu_optim::HyperParameters> groups_;

    void set_group(std::uint32_t group, const cpu_optim::HyperParameters& hyper) {
        auto changed = groups_;
        if (group >= changed.size())
            throw std::invalid_argument(
                fmt::format("group {} is set; there are {}", group, changed.size()));
        changed[group] = hyper;
        check_groups(changed);
        if (cpu_optim::state_planes(hyper) > plan_.update.planes.size() - residue_planes())
            throw std::invalid_argument(fmt::format(
                "group {}: {} with these hyper-parameters keeps {} values per parameter, and the "
                "optimizer was made for {}: make a new one",
                group, cpu_optim::optimizer_name(hyper), cpu_optim::state_planes(hyper),
                plan_.update.planes.size() - residue_planes()));
        groups_ = std::move(changed);
    }

    void rebind(TensorId tensor, void* data) {
        check_tensor(tensor);
        check_data(parameters_[tensor], data, elements(tensor));
        wait();
        parameters_[tensor].data = data;
        tensors_[tensor].data = data;
    }

    void give_gradient(TensorId tensor, Gradient gradient) {
        check_tensor(tensor);
        const auto alignment = cpu_optim::gradient_bytes(gradient.type);
        if (elements(tensor) == 0)
            gradient.data = &no_elements;
        if (gradient.data == nullptr ||
            reinterpret_cast<std::uintptr_t>(gradient.data) % alignment != 0)
            throw std::invalid_argument(fmt::format(
                "the gradient of '{}' lies at address {}; needed is one that is a multiple "
                "of {} bytes and not null",
                parameters_[tensor].name, fmt::ptr(gradient.data), alignment));
        if (!current_gradients()->give(tensor, {gradient.data, gradient.type}))
            throw std::logic_error(fmt::format("the gradient of '{}' was given before in this step",
                                               parameters_[tensor].name));
    }

    void discard_gradients() {
        if (streaming_)
            throw std::logic_error(
                "gradients of a streamed step are used as they come and cannot be discarded");
        current_gradients()->clear();
    }

    StepReport begin_step(const StepRule& rule) {
        check_ready("begin_step");
        check_scale(rule.gradient_scale);
        const bool looks = rule.max_norm.has_value() || rule.nonfinite != NonfiniteRule::propagate;
        if (rule.max_norm && !(*rule.max_norm > 0))
            throw std::invalid_argument(
                fmt::format("max_norm is {} and must be more than 0", *rule.max_norm));
        wait();
        StepReport report;
        double scale = rule.gradient_scale;
        const auto gradients = current_gradients();
        gradients->close();
        if (looks)
            scale *= judge(rule, *gradients, report);
        if (report.nonfinite != 0 && rule.nonfinite == NonfiniteRule::stop) {
            replace_gradients();
            throw NonfiniteGradient(
                fmt::format("the gradient of '{}' holds an infinity or a NaN ({} elements of all "
                            "gradients); the "
                            "step was not taken",
                            report.nonfinite_tensor, report.nonfinite));
        }
        report.applied = report.nonfinite == 0 || rule.nonfinite != NonfiniteRule::skip;
        if (report.applied)
            begin_update(gradients, scale);
        replace_gradients();
        return report;
    }

    void begin_streamed_step(double gradient_scale) {
        check_ready("begin_streamed_step");
        check_scale(gradient_scale);
        wait();
        if (!current_gradients()->empty())
            throw std::logic_error(
                "begin_streamed_step: gradients were given before it; discard them or take a step");
        begin_update(current_gradients(), gradient_scale);
        streaming_ = true;
    }

    void end_gradients() {
        if (!streaming_)
            throw std::logic_error("end_gradients: no streamed step is under way");
        current_gradients()->close();
        streaming_ = false;
        replace_gradients();
    }

    void wait_for(TensorId tensor) {
        check_tensor(tensor);
        const auto range = order_.range(tensor);
        const auto chunk_elements = plan_.update.chunk_tiles * tile_elements;
        auto lock = monitor_.lock();
        for (auto chunk = range.begin / chunk_elements; chunk * chunk_elements < range.end; ++chunk)
            monitor_.wait(lock, [&] { return board_.readable(lock, chunk, version_); });
    }

    void wait() {
        require_no_stream("wait");
        pipeline_->wait_idle();
        monitor_.throw_if_poisoned();
    }
    bool wait(std::chrono::milliseconds limit) {
        require_no_stream("wait");
        return pipeline_->wait_idle(limit);
    }

    std::optional<TensorCommit> recover() {
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

    void begin_commit(const TensorCommit& note) {
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
        pipeline_->request_commit({note.iteration, note.client_state}, version_);
    }

    [[nodiscard]] std::uint64_t steps(TensorId tensor) {
        check_tensor(tensor);
        wait();
        return tensors_[tensor].steps;
    }
    void set_steps(TensorId tensor, std::uint64_t steps) {
        check_tensor(tensor);
        check_ready("set_steps");
        wait();
        tensors_[tensor].steps = steps;
    }

    void read_plane(TensorId tensor, Plane plane, std::uint64_t first, std::byte* out,
                    std::size_t count) {
        const auto range = part(tensor, first, count);
        check_ready("reading state");
        wait();
        access_->read(plane, range, out);
    }
    void write_plane(TensorId tensor, Plane plane, std::uint64_t first, const std::byte* values,
                     std::size_t count) {
        const auto range = part(tensor, first, count);
        check_ready("writing state");
        wait();
        pipeline_->edit([&] { access_->write(plane, range, values); });
        if (committer_)
            committer_->after_update();
    }

    std::span<float> state_view(TensorId tensor, std::size_t plane) {
        check_tensor(tensor);
        check_ready("state_view");
        wait();
        auto* const data = access_->resident(state_plane(plane), order_.range(tensor));
        return data == nullptr ? std::span<float>{}
                               : std::span(reinterpret_cast<float*>(data),
                                           static_cast<std::size_t>(elements(tensor)));
    }

    void read_masters(TensorId tensor, std::uint64_t first, std::span<float> out) {
        static_cast<void>(part(tensor, first, out.size()));
        check_ready("read_masters");
        wait();
        if (tensors_[tensor].type == ParameterType::fp32) {
            std::copy_n(static_cast<const float*>(tensors_[tensor].data) + first, out.size(),
                        out.begin());
            return;
        }
        std::vector<std::int16_t> residues(out.size());
        read_residue(tensor, first, residues);
        cpu_optim::join_master(
            options_.isa,
            {static_cast<const std::uint16_t*>(tensors_[tensor].data) + first, out.size()},
            residues, out);
    }

    void reset_residue(TensorId tensor) {
        check_tensor(tensor);
        check_ready("reset_residue");
        wait();
        tensors_[tensor].fresh_residue = tensors_[tensor].type == ParameterType::bf16;
    }
    void read_residue(TensorId tensor, std::uint64_t first, std::span<std::int16_t> out) {
        check_bf16(tensor);
        read_plane(tensor, Plane::residue, first, reinterpret_cast<std::byte*>(out.data()),
                   out.size());
        if (tensors_[tensor].fresh_residue)
            std::ranges::fill(out, std::int16_t{0});
    }
    void write_residue(TensorId tensor, std::uint64_t first, std::span<const std::int16_t> values) {
        check_bf16(tensor);
        if (tensors_[tensor].fresh_residue && values.size() != elements(tensor))
            throw std::logic_error(
                fmt::format("write_residue: the residues of '{}' were reset; write all {} of them",
                            parameters_[tensor].name, elements(tensor)));
        write_plane(tensor, Plane::residue, first,
                    reinterpret_cast<const std::byte*>(values.data()), values.size());
        tensors_[tensor].fresh_residue = false;
    }

    [[nodiscard]] Plane state_plane(std::size_t index) const {
        const auto count = plan_.update.planes.size() - residue_planes();
        if (index >= count)
            throw std::invalid_argument(
                fmt::format("state plane {} is asked for; {} keeps {}", index,
                            cpu_optim::optimizer_name(groups_.front()), count));
        constexpr std::array planes{Plane::m, Plane::v, Plane::extra};
        return planes[index];
    }
    [[nodiscard]] std::size_t state_planes() const noexcept {
        return plan_.update.planes.size() - residue_planes();
    }

    [[nodiscard]] TensorOptimizerStatistics statistics() const;
    [[nodiscard]] std::string_view io_backend_name() const noexcept {
        return queue_.backend_name();
    }

  private:
    TensorCommit load_commit() {
        const auto& table = recovered_->table;
        store_->load(table);
        committer_->load(table);
        for (TensorId tensor = 0; tensor < tensors_.size(); ++tensor)
            tensors_[tensor].steps = table.tensor_steps[tensor];
        detail::load_resident_planes({*store_, planes_, plan_.update, threads_, work_.bytes()});
        weights_->load(*store_);
        TensorCommit note{table.iteration, table.client_state};
        must_recover_ = false;
        start(table.update);
        recovered_.reset();
        return note;
    }

    TensorPlan checked_plan() {
        check_groups(groups_);
        check_parameters(parameters_, order_, groups_.size());
        if (!options_.nvme.empty())
            options_.nvme = detail::check_nvme(options_.nvme);
        if (options_.threads == 0)
            throw std::invalid_argument("threads is 0 and must be at least 1");
        const auto types = types_of(parameters_);
        return make_tensor_plan(
            order_, types,
            {.state_planes = most_state_planes(groups_),
             .host_bytes = options_.host_bytes,
             .nvme = options_.nvme.empty() ? NvmeTier::absent : NvmeTier::present,
             .commits = options_.out.empty() ? Commits::never : Commits::possible,
             .chunk_bytes = options_.chunk_bytes});
    }

    std::unique_ptr<nvme::IoBackend> backend() const {
        return options_.backend_factory
                   ? options_.backend_factory(options_.io_depth)
                   : nvme::make_backend(options_.io_backend, options_.io_depth);
    }

    void open_store() {
        if (!options_.out.empty())
            open_durable_store();
        else
            store_.emplace(queue_, scratch_file(), order_, Durability::off, plan_.stored);
        ledger_.count("tables",
                      2 * detail::tile_store_bytes(order_.tiles(), plan_.stored) +
                          static_cast<std::size_t>(order_.tiles()) * 16 +
                          (log_ ? log_->buffer_bytes() + table_capacity_bytes(shape()) : 0));
        if (!must_recover_)
            store_->assume_zeros();
    }

    std::optional<nvme::DirectFile> scratch_file() const {
        if (plan_.update.disk_bytes == 0)
            return std::nullopt;
        return detail::make_scratch_file(options_.nvme, plan_.update.disk_bytes);
    }

    void open_durable_store() {
        const auto specs = tensor_specs(parameters_);
        folder_.emplace(open_folder(options_, specs, plan_.stored));
        open_log();
        recovered_ = log_->recover();
        folder_->check_commit(recovered_ ? recovered_->table.sequence : 0);
        if (!recovered_ && std::filesystem::exists(folder_->extents_file())) {
            // Updates that no commit names may have been written: start from zeros.
            log_.reset();
            folder_.reset();
            StateFolder::start_over(options_.out, options_.nvme);
            folder_.emplace(open_folder(options_, specs, plan_.stored));
            open_log();
        }
        must_recover_ = recovered_.has_value();
        nvme::DirectFile extents(folder_->extents_file(), nvme::OpenMode::create_or_open,
                                 nvme::DirectMode::automatic);
        extents.preallocate(plan_.update.disk_bytes);
        store_.emplace(queue_, std::move(extents), order_, Durability::on, plan_.stored);
        tensor_steps_.resize(parameters_.size());
        weights_.emplace(detail::ClientWeightImage::Context{order_, planes_, plan_.update, threads_,
                                                            tensors_, work_.bytes()});
        committer_.emplace(detail::Committer::Context{*log_, *folder_, *store_, planes_,
                                                      plan_.update, threads_, Durability::on,
                                                      tensor_steps_, &*weights_});
    }

    void open_log() {
        const auto start = std::filesystem::exists(folder_->folder() / "record.0")
                               ? CommitLog::Start::open_existing
                               : CommitLog::Start::create;
        log_.emplace(queue_, folder_->folder(), folder_->manifest().run, shape(), start);
    }

    [[nodiscard]] CommitTableShape shape() const {
        return {order_.tiles(), static_cast<std::uint32_t>(parameters_.size()), plan_.stored};
    }
    [[nodiscard]] std::vector<std::uint64_t> all_chunks() const {
        std::vector<std::uint64_t> chunks(plan_.update.chunks);
        for (std::uint64_t chunk = 0; chunk < chunks.size(); ++chunk)
            chunks[chunk] = chunk;
        return chunks;
    }

    void start(std::uint64_t version) {
        version_ = version;
        board_.reset(version);
        pipeline_->start();
    }

    static void check_scale(double gradient_scale) {
        if (!std::isfinite(gradient_scale))
            throw std::invalid_argument(
                fmt::format("gradient_scale is {} and must be finite", gradient_scale));
    }

    void begin_update(const std::shared_ptr<detail::StepGradients>& gradients, double scale) {
        const detail::ClientUpdate::Context context{
            *store_, plan_.update, committer_ ? &*committer_ : nullptr, threads_, tensors_};
        auto update = std::make_unique<detail::ClientUpdate>(context, gradients, groups_, scale);
        pipeline_->begin_update(std::move(update), ++version_);
    }

    /// Norm and finiteness into the report; returns the clip coefficient.
    double judge(const StepRule& rule, const detail::StepGradients& gradients, StepReport& report) {
        const auto found = detail::gradient_norm(order_, gradients, threads_);
        report.norm = found.norm * std::abs(rule.gradient_scale);
        report.nonfinite = found.nonfinite;
        if (found.nonfinite != 0)
            report.nonfinite_tensor = parameters_[found.first_nonfinite].name;
        if (!rule.max_norm)
            return 1;
        const auto coefficient = *rule.max_norm / (*report.norm + 1e-6);
        return std::isnan(coefficient) ? 1 : std::min(1.0, coefficient);
    }

    std::shared_ptr<detail::StepGradients> new_gradients() {
        return std::make_shared<detail::StepGradients>(monitor_, order_);
    }
    std::shared_ptr<detail::StepGradients> current_gradients() {
        const auto lock = monitor_.lock();
        return gradients_;
    }
    void replace_gradients() {
        auto fresh = new_gradients();
        const auto lock = monitor_.lock();
        gradients_ = std::move(fresh);
    }

    void check_tensor(TensorId tensor) const {
        if (tensor >= parameters_.size())
            throw std::invalid_argument(
                fmt::format("tensor {} is asked for; there are {}", tensor, parameters_.size()));
    }
    void check_bf16(TensorId tensor) const {
        check_tensor(tensor);
        if (parameters_[tensor].type != ParameterType::bf16)
            throw std::invalid_argument(fmt::format("'{}' is {}: only bf16 has residues",
                                                    parameters_[tensor].name,
                                                    type_name(parameters_[tensor].type)));
    }
    ElementRange part(TensorId tensor, std::uint64_t first, std::size_t count) const {
        check_tensor(tensor);
        const auto whole = order_.range(tensor);
        if (first > whole.size() || count > whole.size() - first)
            throw std::invalid_argument(
                fmt::format("elements {} to {} of '{}' are asked for; it has {}", first,
                            first + count, parameters_[tensor].name, whole.size()));
        return {whole.begin + first, whole.begin + first + count};
    }
    void check_ready(const char* what) {
        monitor_.throw_if_poisoned();
        if (must_recover_)
            throw std::logic_error(
                fmt::format("{}: {} holds a commit; call recover() first, or use an empty folder",
                            what, options_.out.string()));
        require_no_stream(what);
    }
    void require_no_stream(const char* what) const {
        if (streaming_)
            throw std::logic_error(
                fmt::format("{}: a streamed step is under way; call end_gradients() first", what));
    }
    [[nodiscard]] std::uint64_t elements(TensorId tensor) const {
        return order_.range(tensor).size();
    }
    [[nodiscard]] std::size_t residue_planes() const noexcept {
        return plan_.update.planes.contains(Plane::residue) ? 1 : 0;
    }

    TensorOptimizerOptions options_;
    ElementOrder order_;
    TensorPlan plan_;
    detail::Monitor monitor_;
    detail::StallTotals update_time_;
    detail::MemoryLedger ledger_;
    nvme::IoQueue queue_;
    std::optional<StateFolder> folder_;
    std::optional<CommitLog> log_;
    std::optional<CommitLog::Recovered> recovered_;
    std::optional<detail::TileStore> store_;
    detail::HostPlanes planes_;
    detail::ChunkBoard board_;
    detail::UpdateThreads threads_;
    nvme::HugePageArena work_;
    detail::ClientTensors tensors_;
    std::vector<std::uint64_t> tensor_steps_;  ///< as of the commit asked for last
    std::optional<detail::ClientWeightImage> weights_;
    std::optional<detail::Committer> committer_;
    std::optional<detail::PlaneAccess> access_;
    std::shared_ptr<detail::StepGradients> gradients_;  ///< replaced under the monitor's lock
    bool must_recover_ = false;
    bool streaming_ = false;
    std::uint64_t version_ = 0;
    std::optional<detail::UpdatePipeline> pipeline_;  // last: its thread uses all of the above
};

TensorOptimizerStatistics TensorOptimizer::Impl::statistics() const {
    TensorOptimizerStatistics all;
    const auto io = queue_.statistics();
    all.nvme_read_bytes = io.read_bytes;
    all.commit_bytes = committer_ ? committer_->commit_bytes() : 0;
    all.nvme_written_bytes = io.written_bytes - std::min(io.written_bytes, all.commit_bytes);
    all.host_bytes = ledger_.total_bytes();
    for (std::uint64_t chunk = 0; chunk < plan_.update.chunks; ++chunk) {
        const auto tiles = plan_.update.chunk_range(chunk, order_.tiles()).size();
        for (const auto plane : plan_.update.planes_of(chunk)) {
            all.state_bytes += tiles * tile_bytes(plane);
            if (planes_.plane(plane, chunk) != nullptr)
                all.resident_state_bytes += tiles * tile_bytes(plane);
        }
    }
    all.update_busy_s = update_time_.seconds(StallCause::cpu);
    all.update_wall_s = pipeline_->wall_s();
    all.stall_nvme_read_s = update_time_.seconds(StallCause::nvme_read);
    all.stall_nvme_write_s = update_time_.seconds(StallCause::nvme_write);
    all.stall_gradient_s = update_time_.seconds(StallCause::link);
    return all;
}

TensorOptimizer::TensorOptimizer(std::vector<Parameter> parameters,
                                 std::vector<cpu_optim::HyperParameters> groups,
                                 TensorOptimizerOptions options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(groups), std::move(options))) {}
TensorOptimizer::~TensorOptimizer() = default;

std::span<const Parameter> TensorOptimizer::parameters() const noexcept {
    return impl_->parameters_;
}
std::size_t TensorOptimizer::state_planes() const noexcept {
    return impl_->state_planes();
}
void TensorOptimizer::set_group(std::uint32_t group, const cpu_optim::HyperParameters& hyper) {
    impl_->set_group(group, hyper);
}
void TensorOptimizer::rebind(TensorId tensor, void* data) {
    impl_->rebind(tensor, data);
}
void TensorOptimizer::give_gradient(TensorId tensor, Gradient gradient) {
    impl_->give_gradient(tensor, gradient);
}
void TensorOptimizer::discard_gradients() {
    impl_->discard_gradients();
}
StepReport TensorOptimizer::begin_step(const StepRule& rule) {
    return impl_->begin_step(rule);
}
void TensorOptimizer::begin_streamed_step(double gradient_scale) {
    impl_->begin_streamed_step(gradient_scale);
}
void TensorOptimizer::end_gradients() {
    impl_->end_gradients();
}
void TensorOptimizer::wait_for(TensorId tensor) {
    impl_->wait_for(tensor);
}
void TensorOptimizer::wait() {
    impl_->wait();
}
bool TensorOptimizer::wait(std::chrono::milliseconds limit) {
    return impl_->wait(limit);
}
std::optional<TensorCommit> TensorOptimizer::recover() {
    return impl_->recover();
}
void TensorOptimizer::begin_commit(const TensorCommit& note) {
    impl_->begin_commit(note);
}
std::uint64_t TensorOptimizer::steps(TensorId tensor) const {
    return impl_->steps(tensor);
}
void TensorOptimizer::set_steps(TensorId tensor, std::uint64_t steps) {
    impl_->set_steps(tensor, steps);
}
void TensorOptimizer::read_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                                 std::span<float> out) {
    impl_->read_plane(tensor, impl_->state_plane(plane), first,
                      reinterpret_cast<std::byte*>(out.data()), out.size());
}
void TensorOptimizer::write_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                                  std::span<const float> values) {
    impl_->write_plane(tensor, impl_->state_plane(plane), first,
                       reinterpret_cast<const std::byte*>(values.data()), values.size());
}
std::span<float> TensorOptimizer::state_view(TensorId tensor, std::size_t plane) {
    return impl_->state_view(tensor, plane);
}
void TensorOptimizer::read_masters(TensorId tensor, std::uint64_t first, std::span<float> out) {
    impl_->read_masters(tensor, first, out);
}
void TensorOptimizer::reset_residue(TensorId tensor) {
    impl_->reset_residue(tensor);
}
void TensorOptimizer::read_residue(TensorId tensor, std::uint64_t first,
                                   std::span<std::int16_t> out) {
    impl_->read_residue(tensor, first, out);
}
void TensorOptimizer::write_residue(TensorId tensor, std::uint64_t first,
                                    std::span<const std::int16_t> values) {
    impl_->write_residue(tensor, first, values);
}
TensorOptimizerStatistics TensorOptimizer::statistics() const {
    return impl_->statistics();
}
std::string_view TensorOptimizer::io_backend_name() const noexcept {
    return impl_->io_backend_name();
}

}  // namespace spillway::offload
