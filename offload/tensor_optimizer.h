// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cpu_optim/state_format.h"
#include "offload/average_rule.h"
#include "offload/drive_statistics.h"
#include "offload/element_order.h"
#include "offload/errors.h"
#include "offload/hyper_groups.h"
#include "offload/io_options.h"
#include "offload/step_trace.h"
#include "offload/tensor_plan.h"

namespace spillway::offload {

/// A tensor whose values live in the client's memory.
struct Parameter {
    std::string name;
    std::vector<std::uint64_t> shape;
    ParameterType type = ParameterType::fp32;
    std::uint32_t group = 0;  ///< index into the hyper-parameter groups
    /// Row-major, without gaps; must stay valid until rebind() or the optimizer's end. Updates
    /// write it. May be null for a tensor without elements.
    void* data = nullptr;
};

/// A gradient in the client's memory: row-major, without gaps, as many elements as its parameter.
struct Gradient {
    const void* data = nullptr;
    cpu_optim::GradientType type = cpu_optim::GradientType::fp32;
};

/// What happens when a gradient holds an infinity or a NaN.
enum class NonfiniteRule {
    propagate,  ///< it goes into the weights, as in torch; with an optimizer of whole tensors
                ///< into all of its tensor
    skip,       ///< the step changes nothing
    stop,       ///< NonfiniteGradient naming the tensor; nothing has changed
};

/// One step over all gradients that were given.
struct StepRule {
    double gradient_scale = 1.0;  ///< on every gradient, before the norm
    std::optional<double> max_norm =
        std::nullopt;  ///< clip by global norm: scale by min(1, max_norm / (norm + 1e-6));
    /// a norm that is NaN clips nothing
    NonfiniteRule nonfinite = NonfiniteRule::propagate;
};

struct StepReport {
    bool applied = true;          ///< false: skipped
    std::optional<double> norm;   ///< global 2-norm, scaled, before clipping; if the rule needed it
    std::uint64_t nonfinite = 0;  ///< elements; 0 if the rule did not need to look
    std::string nonfinite_tensor;  ///< the first that has one, "" if none
};

struct TensorOptimizerOptions {
    /// Host memory for state and staging together. Without `nvme` all must fit.
    std::size_t host_bytes = 0;
    /// A folder on a drive for the state that does not fit; empty: none. Without `out` the state
    /// lies in a file without a name, which the kernel frees however the process ends.
    std::filesystem::path nvme;
    std::vector<std::filesystem::path> more_nvme;  ///< further drives; state is divided over all
    /// A folder for commits (state, weights and counters: design section 9); empty: none can be
    /// made. A run in it that lies on other drives than `nvme` names moves to those (relocation.h).
    std::filesystem::path out;
    /// In which state is kept; lossy ones round stochastically, by a hash of this seed, the
    /// tensor's number, its element and its step. Both are part of the run.
    cpu_optim::StateFormat state = cpu_optim::StateFormat::fp32;
    std::uint64_t rounding_seed = 0;
    /// Keeps a running average of each tensor's fp32 masters, a plane beside the state. It takes
    /// them up by the tensor's own count of updates, which steps() tells: a step without a gradient
    /// for it is none of them. Whether there is one, its kind and after how many updates it takes
    /// weights up are fixed when a run is made; an EMA's decay may change when it is resumed.
    std::optional<AverageRule> average = std::nullopt;
    std::size_t chunk_bytes = 0;  ///< as PlanRequest::chunk_bytes
    Windows windows = {};
    std::size_t threads = 1;  ///< of the update
    cpu_optim::Isa isa = cpu_optim::Isa::scalar;
    IoOptions io;
    StepTrace* trace = nullptr;          ///< records updates, commits and I/O; must outlive it
    std::string client_settings = "{}";  ///< JSON object, kept in the manifest of `out`
};

/// What a commit keeps beside tensors and counters, given back by recover().
struct TensorCommit {
    std::uint64_t iteration = 0;  ///< the client's own count
    std::string client_state;     ///< at most CommitTable::client_state_limit_bytes
};

struct TensorOptimizerStatistics {
    std::uint64_t nvme_read_bytes = 0;
    std::uint64_t nvme_written_bytes = 0;  ///< commit_bytes not included
    std::uint64_t commit_bytes = 0;
    std::size_t host_bytes = 0;              ///< allocated, by the ledger
    std::uint64_t state_bytes = 0;           ///< at rest, over both tiers
    std::uint64_t resident_state_bytes = 0;  ///< of these, in host memory
    double update_busy_s = 0;                ///< arithmetic
    double update_wall_s = 0;
    double stall_nvme_read_s = 0;  ///< of the update, waiting for the drive
    double stall_nvme_write_s = 0;
    std::vector<DriveStatistics> drives = {};  ///< by number; none without drives
    std::uint64_t moved_regions = 0;           ///< copies that went to another drive
    std::uint64_t relocated_bytes = 0;  ///< that moved at the start, since the drives were others
    double stall_gradient_s = 0;        ///< of the update, waiting for gradients (streamed steps)
};

/// An optimizer over tensors that stay in the client's memory, with its own state (moments,
/// residues) over host memory and a drive. Knows names, groups and gradients; not models.
///
/// Optimizers of whole tensors come to each chunk twice in a step (LAMB, LARS) or three times
/// (Adafactor), and change it the last time: gradients are read as often, too.
///
/// A step, plain: give_gradient() for every tensor that has one, then begin_step(), then wait() (or
/// wait_for() tensor by tensor while the update still runs). Streamed: begin_streamed_step() first;
/// every tensor is updated soon after its gradient was given; end_gradients(), then wait(). Both
/// give the same bits. Tensors without a gradient are left alone, their counters too.
///
/// Gradients are read, weights are written, until wait(), or wait_for() of that tensor, returns;
/// the client leaves both alone till then.
///
/// A forked child must not use its parent's optimizer.
///
/// Threads: give_gradient() may be called from any thread; everything else from one at a time.
/// Errors: a failure of I/O or integrity poisons the object: the next call and every later one
/// throws the first error. After a step that failed every weight is the old or the new one; after a
/// recover() that failed weights are undefined. What the caller did wrong is std::invalid_argument
/// (a value) or std::logic_error (an order of calls), changes nothing and poisons nothing.
class TensorOptimizer {
  public:
    /// All groups must be of one optimizer. Throws std::invalid_argument, PlanRefused (memory or
    /// disk), FolderRefused (out).
    TensorOptimizer(std::vector<Parameter> parameters, HyperGroups groups,
                    TensorOptimizerOptions options);
    /// Makes nothing, and throws what the constructor would for want of memory or of room on the
    /// drive, or of groups and options. Of parameters only name, shape and type are looked at.
    static void check_room(const std::vector<Parameter>& parameters, const HyperGroups& groups,
                           TensorOptimizerOptions options);
    ~TensorOptimizer();
    TensorOptimizer(const TensorOptimizer&) = delete;
    TensorOptimizer& operator=(const TensorOptimizer&) = delete;

    [[nodiscard]] std::span<const Parameter> parameters() const noexcept;
    /// Values of state per parameter (cpu_optim::needs, the most of any group).
    [[nodiscard]] std::size_t state_planes() const noexcept;

    /// From the next step on. The kind of optimizer stays, and it may not need more state planes
    /// than there are.
    void set_group(std::uint32_t group, const cpu_optim::HyperParameters& hyper);
    void set_group(std::uint32_t group, const cpu_optim::LayerwiseHyperParameters& hyper);
    void set_group(std::uint32_t group, const cpu_optim::AdafactorHyperParameters& hyper);
    /// The tensor's values have moved (same type, same count).
    void rebind(TensorId tensor, void* data);

    /// Once a step and tensor.
    void give_gradient(TensorId tensor, Gradient gradient);
    /// Forgets the gradients given since the last step.
    void discard_gradients();

    /// Returns once norm and finiteness are known (if the rule asks for them), with the update
    /// under way. `stop`, asked from another thread, ends it while it looks at the gradients:
    /// StepStopped within a tenth of a second or so, nothing has changed, the gradients are kept.
    StepReport begin_step(const StepRule& rule, const std::stop_token& stop = {});
    /// Gradients are not known yet, so neither norm nor finiteness can be asked for.
    void begin_streamed_step(double gradient_scale);
    /// No more gradients come for the streamed step.
    void end_gradients();
    /// Until the weights of `tensor` are those after the step begun last. With a limit: whether
    /// they are, so that a caller can look for interruptions between two calls.
    void wait_for(TensorId tensor);
    [[nodiscard]] bool wait_for(TensorId tensor, std::chrono::milliseconds limit);
    /// Until update and commit are over. With a limit: whether they are.
    void wait();
    [[nodiscard]] bool wait(std::chrono::milliseconds limit);

    /// The newest commit of `out`: loads state and counters, and the weights into the clients'
    /// memory. None: there was no commit. Before the first step.
    [[nodiscard]] std::optional<TensorCommit> recover();
    /// Starts a commit of everything as it is after the step begun last; durable once wait()
    /// returned. Needs `out`.
    void begin_commit(const TensorCommit& note);

    /// A tensor's own number of updates. Setting it is for loading a foreign checkpoint.
    [[nodiscard]] std::uint64_t steps(TensorId tensor) const;
    void set_steps(TensorId tensor, std::uint64_t steps);
    /// Elements first .. first + size of one state plane of a tensor. Waits for the update. State
    /// in a lossy format is decoded, and encoded to nearest: what was read is written back as it
    /// was. int8 is written in whole blocks of 256 elements, but for the tensor's end.
    void read_state(TensorId tensor, std::size_t plane, std::uint64_t first, std::span<float> out);
    void write_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                     std::span<const float> values);
    /// The plane of a tensor where it lies, if all of it is in host memory and fp32, else an empty
    /// span.
    /// Valid as long as the optimizer; written by updates.
    [[nodiscard]] std::span<float> state_view(TensorId tensor, std::size_t plane);
    /// Values of a tensor's factored second moments, in the order of FactoredTensor; 0 for an
    /// optimizer that keeps none.
    [[nodiscard]] std::uint64_t factors(TensorId tensor) const;
    /// Values first .. first + size of them. Waits for the update. Throws std::logic_error if none
    /// are kept.
    void read_factors(TensorId tensor, std::uint64_t first, std::span<float> out);
    void write_factors(TensorId tensor, std::uint64_t first, std::span<const float> values);
    /// The fp32 masters of a tensor: the weight itself, or weight and residue joined.
    void read_masters(TensorId tensor, std::uint64_t first, std::span<float> out);
    /// Elements first .. first + size of a tensor's average. Waits for the update. Throws
    /// std::logic_error if none is kept, or, to read it, the tensor was not updated often enough
    /// for it to have taken up any weights. Writing is for loading a checkpoint, with set_steps().
    void read_average(TensorId tensor, std::uint64_t first, std::span<float> out);
    void write_average(TensorId tensor, std::uint64_t first, std::span<const float> values);
    /// The client has changed the values of a bf16 tensor: they are its masters now, without
    /// residue. An fp32 tensor needs nothing.
    void reset_residue(TensorId tensor);
    /// Residues of a bf16 tensor, read and written as read_state() and write_state() do.
    void read_residue(TensorId tensor, std::uint64_t first, std::span<std::int16_t> out);
    void write_residue(TensorId tensor, std::uint64_t first, std::span<const std::int16_t> values);

    [[nodiscard]] TensorOptimizerStatistics statistics() const;
    [[nodiscard]] std::string_view io_backend_name() const noexcept;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::offload
