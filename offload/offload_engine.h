// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpu_optim/isa.h"
#include "cuda/device.h"
#include "offload/activations.h"
#include "offload/average_rule.h"
#include "offload/drive_statistics.h"
#include "offload/element_order.h"
#include "offload/errors.h"
#include "offload/hyper_groups.h"
#include "offload/io_options.h"
#include "offload/plan.h"
#include "offload/stall_seconds.h"
#include "offload/state_folder.h"
#include "offload/step_trace.h"

namespace spillway::offload {

namespace detail {
struct DeviceRecord;
enum class StallCause : std::uint8_t;
}  // namespace detail

/// Which sums of squares a GradientSummary has.
enum class GradientNorms { of_all, of_each_tensor };

struct OffloadOptions {
    std::size_t threads = 1;  ///< of the update
    cpu_optim::Isa isa = cpu_optim::Isa::scalar;
    IoOptions io;
    Durability durability = Durability::on;
    UpdateTiming timing = UpdateTiming::after_norm;
    GradientNorms norms = GradientNorms::of_all;
    std::optional<AverageRule> average;  ///< of the weights, if the plan has a plane for it
    std::uint64_t rounding_seed = 0;     ///< of lossy state: part of the run
    StepTrace* trace = nullptr;          ///< records what the engine does; must outlive it
    /// Devices that share its units (DeviceGroup), each with lanes and stalls of its own; 0: none,
    /// the client computes on the engine's device.
    unsigned group_ranks = 0;
};

/// The fp32 gradients of a step, summed over tiles in order.
struct GradientSummary {
    double norm = 0;               ///< square root of the sum of squares; may be infinite or NaN
    std::uint64_t nonfinite = 0;   ///< elements
    std::string nonfinite_tensor;  ///< the first tensor that has one, "" if none
    /// Of each tensor's elements, with GradientNorms::of_each_tensor; else empty.
    std::vector<double> tensor_squares = {};
};

/// What one update needs: hyper-parameters per group, and what is done to the gradients before.
struct UpdateStep {
    HyperGroups groups;           ///< of as many passes as the plan was made for
    double gradient_scale = 1.0;  ///< on every gradient (clip coefficient)
    /// On each tensor's gradient in place of gradient_scale; empty: that.
    std::vector<double> tensor_scales = {};
    /// Every gradient is clamped to [-most, most] first, as cpu_optim::clip_values() does.
    std::optional<float> most_gradient = {};
};

/// What a commit records beside the tensors.
struct CommitNote {
    std::uint64_t iteration = 0;
    std::string client_state;
};

struct RecoveredRun {
    std::uint64_t iteration = 0;
    std::uint64_t update = 0;
    std::string client_state;
    std::string warning;  ///< a newer commit that was found torn and passed over; "" if none
};

/// Seconds waited and bytes moved, since construction.
struct OffloadStatistics {
    /// Of the compute stream and the thread that drives it; with a group of devices, of that thread
    /// alone, while which all devices stand still.
    StallSeconds stall;
    std::vector<StallSeconds> stall_of_devices;  ///< of a group, by rank, with what `stall` has
    double update_busy_s = 0;                    ///< arithmetic of updates, on its own threads
    double update_wall_s = 0;                    ///< from an update's decision to its last write
    double commit_wall_s = 0;   ///< of commits, whoever waited; stall.commit is not hidden
    double commit_write_s = 0;  ///< of it: planes in host memory being written
    double commit_flush_s = 0;  ///< of it: data, table and record being flushed
    std::uint64_t nvme_read_bytes = 0;
    std::uint64_t nvme_written_bytes = 0;  ///< commit_bytes not included
    std::uint64_t commit_bytes = 0;        ///< written only because of commits
    std::uint64_t commits = 0;
    std::size_t host_peak_bytes = 0;      ///< by the ledger, as allocated
    std::vector<DriveStatistics> drives;  ///< by number
    std::uint64_t moved_regions = 0;      ///< copies that went to another drive
};

/// The memory manager: tensors over tiers, their weights streamed to the device in the announced
/// order, gradients taken in, the optimizer run over all chunks while the next pass already
/// follows, commits.
///
/// Threads: all calls come from one driving thread; the engine has threads of its own for prefetch,
/// gradients and updates. Device pointers are for work on the compute stream given at construction.
/// Errors: any failure of I/O, integrity or arithmetic poisons the engine; the next call (and every
/// later one) throws the first error. Destruction after that is safe.
class OffloadEngine {
  public:
    /// Allocates exactly plan.host_bytes and plan.device_bytes; the folder is exclusively locked.
    OffloadEngine(StateFolder folder, ElementOrder order, std::vector<Unit> units,
                  cuda::Device& device, cuda::Stream& compute, OffloadPlan plan,
                  OffloadOptions options);
    ~OffloadEngine();
    OffloadEngine(const OffloadEngine&) = delete;
    OffloadEngine& operator=(const OffloadEngine&) = delete;

    /// Loads the newest commit, verifying every checksum of what becomes resident. None: no commit
    /// was ever completed; call initialise().
    [[nodiscard]] std::optional<RecoveredRun> recover();

    /// Fills a new run chunk by chunk, moments 0, and makes commit 0. `fill(tensor, first, out)`
    /// writes elements first .. first + out.size() of a tensor; called from several threads at
    /// once.
    using InitialValues =
        std::function<void(TensorId tensor, std::uint64_t first, std::span<float> out)>;
    void initialise(const InitialValues& fill, const CommitNote& note);

    /// Announces the units whose weights the next pass will acquire, in order; prefetch starts at
    /// once. The former pass must have acquired all of its own. Weights are those after every
    /// update begun so far; averaged ones are waited for until the update in flight is over. Throws
    /// std::logic_error if there is no average (yet).
    void begin_pass(std::vector<std::size_t> unit_uses, WeightKind kind = WeightKind::newest);
    [[nodiscard]] const float* acquire_weights(std::size_t unit);
    void release_weights(std::size_t unit);
    [[nodiscard]] float* acquire_gradient(std::size_t unit);
    void release_gradient(std::size_t unit);

    /// Keeps the inputs of layers that leave `device`, as the plan has them; work is queued on
    /// `compute`. One for each device, while no pass is under way. Allocates what the plan says;
    /// the engine must outlive it. Null: the plan moves none.
    [[nodiscard]] std::unique_ptr<ActivationStore> open_activations(cuda::Device& device,
                                                                    cuda::Stream& compute);
    /// The same for a device of a group.
    [[nodiscard]] std::unique_ptr<ActivationStore> open_activations(cuda::Device& device,
                                                                    cuda::Stream& compute,
                                                                    unsigned rank);

    /// Blocks until every gradient of the step has been taken in and scanned.
    [[nodiscard]] GradientSummary finish_gradients();

    /// after_norm: call after finish_gradients(); as_completed: call before the step's first
    /// gradient. Returns at once; later passes wait for what they need. The former update and
    /// commit must be over or are waited for.
    void begin_update(const UpdateStep& step);
    /// after_norm only: the step changes nothing.
    void skip_update();

    /// After the update in flight, makes a commit; returns at once. The next update waits for it.
    void request_commit(const CommitNote& note);
    /// Blocks until update and commit are over.
    void wait_idle();

    /// Updates applied or in flight.
    [[nodiscard]] std::uint64_t update() const noexcept;
    /// Whether the average, if one is kept, has taken up any weights.
    [[nodiscard]] bool has_average() const noexcept;
    /// The fp32 masters, or their average, tensor by tensor in order, in pieces; waits for the
    /// update in flight. Throws as begin_pass().
    using MasterVisitor =
        std::function<void(TensorId tensor, std::uint64_t first, std::span<const float> values)>;
    void visit_masters(const MasterVisitor& visit, WeightKind kind = WeightKind::newest);

    [[nodiscard]] OffloadStatistics statistics() const;
    [[nodiscard]] const StateFolder& folder() const noexcept;
    [[nodiscard]] std::string_view io_backend_name() const noexcept;
    /// What its I/O does without and why, a sentence each: nothing that changes a result.
    [[nodiscard]] std::vector<std::string> io_notes() const;
    /// Where the client records its work on the compute stream, with a group of devices that of one
    /// rank; empty without a trace.
    [[nodiscard]] TraceRow compute_row(unsigned rank = 0) const noexcept;

    // ---- for DeviceGroup
    /// Throws std::logic_error for a rank that the options do not have.
    [[nodiscard]] detail::DeviceRecord& device_record(unsigned rank);
    /// What kept the unit that was acquired last.
    [[nodiscard]] detail::StallCause weights_kept_by() const noexcept;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::offload
