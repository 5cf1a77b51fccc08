// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "nvme/huge_page_arena.h"
#include "nvme/io_queue.h"
#include "offload/detail/client/client_tensors.h"
#include "offload/detail/client/client_weights.h"
#include "offload/detail/drives/drive_files.h"
#include "offload/detail/drives/plane_access.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/gradients/step_gradients.h"
#include "offload/detail/placement/host_planes.h"
#include "offload/detail/placement/memory_ledger.h"
#include "offload/detail/state/committer.h"
#include "offload/detail/state/durable_run.h"
#include "offload/detail/state/state_access.h"
#include "offload/detail/threads/monitor.h"
#include "offload/detail/threads/stall_clock.h"
#include "offload/detail/threads/update_threads.h"
#include "offload/detail/update/chunk_board.h"
#include "offload/detail/update/update_pipeline.h"
#include "offload/detail/update/update_rules.h"
#include "offload/tensor_optimizer.h"
#include "offload/tensor_plan.h"

namespace spillway::offload::detail {

/// What is behind TensorOptimizer, whose members say what these do.
class TensorEngine {
  public:
    TensorEngine(std::vector<Parameter> parameters, HyperGroups groups,
                 TensorOptimizerOptions options);

    static void check_room(const std::vector<Parameter>& parameters, const HyperGroups& groups,
                           TensorOptimizerOptions options);

    ~TensorEngine();
    TensorEngine(const TensorEngine&) = delete;
    TensorEngine& operator=(const TensorEngine&) = delete;

    [[nodiscard]] std::span<const Parameter> parameters() const noexcept { return parameters_; }
    /// `changed`: of the optimizer's groups; "group N" in messages.
    void set_groups(HyperGroups changed, std::uint32_t group);
    [[nodiscard]] const HyperGroups& groups() const noexcept { return groups_; }
    void rebind(TensorId tensor, void* data);

    void give_gradient(TensorId tensor, Gradient gradient);
    void discard_gradients();
    StepReport begin_step(const StepRule& rule, const std::stop_token& stop);
    void begin_streamed_step(double gradient_scale);
    void end_gradients();
    void wait_for(TensorId tensor);
    bool wait_for(TensorId tensor, std::chrono::milliseconds limit);
    void wait();
    bool wait(std::chrono::milliseconds limit);

    std::optional<TensorCommit> recover();
    void begin_commit(const TensorCommit& note);

    [[nodiscard]] std::uint64_t steps(TensorId tensor);
    void set_steps(TensorId tensor, std::uint64_t steps);
    void read_state(TensorId tensor, std::size_t plane, std::uint64_t first, std::span<float> out);
    void write_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                     std::span<const float> values);
    std::span<float> state_view(TensorId tensor, std::size_t plane);
    [[nodiscard]] std::uint64_t factors(TensorId tensor) const;
    void read_factors(TensorId tensor, std::uint64_t first, std::span<float> out);
    void write_factors(TensorId tensor, std::uint64_t first, std::span<const float> values);
    void read_masters(TensorId tensor, std::uint64_t first, std::span<float> out);
    void read_average(TensorId tensor, std::uint64_t first, std::span<float> out);
    void write_average(TensorId tensor, std::uint64_t first, std::span<const float> values);
    void reset_residue(TensorId tensor);
    void read_residue(TensorId tensor, std::uint64_t first, std::span<std::int16_t> out);
    void write_residue(TensorId tensor, std::uint64_t first, std::span<const std::int16_t> values);
    [[nodiscard]] std::size_t state_planes() const noexcept {
        return state_plane_count(plan_.update.planes);
    }
    [[nodiscard]] TensorOptimizerStatistics statistics() const;
    [[nodiscard]] std::string_view io_backend_name() const noexcept {
        return queues_.front().backend_name();
    }

  private:
    TensorCommit load_commit();
    TensorPlan checked_plan();
    void open_store();
    OpenDrives open_scratch_files() const;
    [[nodiscard]] DriveRatesSeen drive_rates() const;
    [[nodiscard]] std::vector<std::filesystem::path> folders() const;
    void open_durable_store();
    [[nodiscard]] CommitTableShape shape() const;
    [[nodiscard]] std::vector<std::uint64_t> all_chunks() const;
    void start(std::uint64_t version);

    void begin_update(const std::shared_ptr<StepGradients>& gradients, double scale);

    /// Norm and finiteness into the report; returns the clip coefficient.
    double judge(const StepRule& rule, const StepGradients& gradients, const std::stop_token& stop,
                 StepReport& report);
    std::shared_ptr<StepGradients> new_gradients();
    std::shared_ptr<StepGradients> current_gradients();
    void replace_gradients();

    /// Under the monitor's lock.
    [[nodiscard]] bool is_updated(const Monitor::Lock& lock, TensorId tensor) const noexcept;

    /// What `read` does is read by the calling thread, not by one whose errors are kept.
    void read_access(const std::function<void()>& read);
    void write_access(std::function<void()> write);

    [[nodiscard]] StateAccess state_access(TensorId tensor, std::size_t plane);

    void check_tensor(TensorId tensor) const;
    void check_state_plane(std::size_t index) const;
    void check_average(TensorId tensor) const;
    void check_whole_blocks(TensorId tensor, std::uint64_t first, std::size_t count) const;
    void check_bf16(TensorId tensor) const;
    [[nodiscard]] std::span<float> factors_part(TensorId tensor, std::uint64_t first,
                                                std::size_t count);
    ElementRange part(TensorId tensor, std::uint64_t first, std::size_t count) const;
    void check_ready(const char* what);
    void require_no_stream(const char* what) const;
    [[nodiscard]] std::uint64_t elements(TensorId tensor) const {
        return order_.range(tensor).size();
    }

    std::vector<Parameter> parameters_;
    HyperGroups groups_;
    TensorOptimizerOptions options_;
    ElementOrder order_;
    TensorPlan plan_;
    Monitor monitor_;
    StallTotals update_time_;
    MemoryLedger ledger_;
    EngineTrace trace_;
    HostPlanes planes_;
    UpdateStaging staging_;
    DriveQueues queues_;  // after the memory that they move and may hold on to
    std::optional<DurableRun> run_;
    std::optional<TileStore> store_;
    ChunkBoard board_;
    UpdateThreads threads_;
    nvme::HugePageArena work_;
    UpdateMemory memory_;
    ClientTensors tensors_;
    std::vector<std::uint64_t> tensor_steps_;  ///< as of the commit asked for last
    std::optional<ClientWeightImage> weights_;
    std::optional<Committer> committer_;
    std::optional<PlaneAccess> access_;
    std::shared_ptr<StepGradients> gradients_;  ///< replaced under the monitor's lock
    bool must_recover_ = false;
    bool streaming_ = false;
    bool client_writes_state_ = false;  ///< a view of it was given away
    std::uint64_t version_ = 0;
    std::optional<UpdatePipeline> pipeline_;  // last: its thread uses all of the above
};

}  // namespace spillway::offload::detail
