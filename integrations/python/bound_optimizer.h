// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include "integrations/python/host_array.h"
#include "integrations/python/optimizer_maker.h"
#include "offload/tensor_optimizer.h"

namespace spillway::integrations {

/// offload::TensorOptimizer as Python meets it: arrays are checked and kept alive as long as they
/// may be read or written; calls that may take long release the GIL and look for signals ten times
/// a second: nanobind::python_error when a handler raises (Ctrl-C).
///
/// Every member is called with the GIL held. Calls of several Python threads take turns;
/// give_gradient() and give_gradients() go beside them. In a forked child every call is a
/// std::runtime_error, and the destructor leaves all to the parent: threads do not survive a fork.
class BoundOptimizer {
  public:
    /// `parameters`: (name, array, group) each. `groups`: a dict each. Errors as of the classes
    /// used, with nanobind::type_error for Python types.
    BoundOptimizer(OptimizerMaker& maker, nanobind::iterable parameters, std::string_view optimizer,
                   nanobind::iterable groups, offload::TensorOptimizerOptions options);
    ~BoundOptimizer();
    BoundOptimizer(const BoundOptimizer&) = delete;
    BoundOptimizer& operator=(const BoundOptimizer&) = delete;

    [[nodiscard]] std::size_t state_planes() const;
    [[nodiscard]] std::string io_backend() const;

    /// Fields that are not named keep their values.
    void set_group(std::uint32_t group, nanobind::dict fields);
    void rebind(offload::TensorId tensor, nanobind::handle array);

    void give_gradient(offload::TensorId tensor, nanobind::handle array);
    /// Checks all arrays before it gives the first.
    void give_gradients(const std::vector<offload::TensorId>& tensors, nanobind::list arrays);
    void discard_gradients();

    /// When a handler raises the step is not begun and the gradients are kept; if it had begun in
    /// that moment, the next wait() raises instead.
    offload::StepReport begin_step(const offload::StepRule& rule);
    void begin_streamed_step(double gradient_scale);
    void end_gradients();
    void wait_for(offload::TensorId tensor);
    /// When a handler raises, here and in every call that waits for the update, the update goes on.
    void wait();
    /// Before the interpreter ends: an update in flight would meet a process being taken down, and
    /// a thread that wants the GIL back would be killed inside C++. Later calls keep the GIL. Waits
    /// for nothing in a forked child or in a streamed step that never ended; throws nothing but
    /// nanobind::python_error.
    void drain();

    /// When a handler raises the recovery goes on; later calls wait for it, and the next recover()
    /// gives its result.
    [[nodiscard]] std::optional<offload::TensorCommit> recover();
    void commit(std::uint64_t iteration, std::string client_state);

    [[nodiscard]] std::uint64_t steps(offload::TensorId tensor);
    void set_steps(offload::TensorId tensor, std::uint64_t steps);
    void read_state(offload::TensorId tensor, std::size_t plane, std::uint64_t first,
                    nanobind::handle out);
    void write_state(offload::TensorId tensor, std::size_t plane, std::uint64_t first,
                     nanobind::handle values);
    [[nodiscard]] std::span<float> state_view(offload::TensorId tensor, std::size_t plane);
    [[nodiscard]] std::uint64_t factors(offload::TensorId tensor);
    void read_factors(offload::TensorId tensor, std::uint64_t first, nanobind::handle out);
    void write_factors(offload::TensorId tensor, std::uint64_t first, nanobind::handle values);
    void read_masters(offload::TensorId tensor, std::uint64_t first, nanobind::handle out);
    void read_average(offload::TensorId tensor, std::uint64_t first, nanobind::handle out);
    void write_average(offload::TensorId tensor, std::uint64_t first, nanobind::handle values);
    void reset_residue(offload::TensorId tensor);
    void read_residue(offload::TensorId tensor, std::uint64_t first, nanobind::handle out);
    void write_residue(offload::TensorId tensor, std::uint64_t first, nanobind::handle values);

    [[nodiscard]] offload::TensorOptimizerStatistics statistics();

  private:
    using Arrays = std::vector<nanobind::ndarray<nanobind::ro>>;
    enum class Gradients { of_next_step, of_this_step };  ///< this: between streaming's two ends

    /// The GIL released, and counted.
    class GilReleased {
      public:
        explicit GilReleased(BoundOptimizer& optimizer);
        ~GilReleased();
        GilReleased(const GilReleased&) = delete;
        GilReleased& operator=(const GilReleased&) = delete;

      private:
        BoundOptimizer& optimizer_;
        PyThreadState* thread_ = nullptr;  ///< null: the interpreter ends, the GIL was kept
    };

    void check_process() const;
    void check_tensor(offload::TensorId tensor) const;
    template <typename Call>
    void move_floats(offload::TensorId tensor, std::uint64_t first, nanobind::handle values,
                     ArrayAccess access, const Call& call);
    [[nodiscard]] HostArray gradient_array(offload::TensorId tensor, nanobind::handle array) const;
    void keep_gradient(offload::TensorId tensor, HostArray array);
    [[nodiscard]] std::vector<offload::Parameter> take_parameters(nanobind::iterable parameters);

    /// `call` on the optimizer, without the GIL, one at a time.
    template <typename Call>
    auto without_gil(Call&& call) {
        check_process();
        for (;; check_signals()) {
            const GilReleased no_gil(*this);
            const std::unique_lock one_at_a_time(calls_, signal_interval);
            if (one_at_a_time)
                return call(*optimizer_);
        }
    }

    /// Until `result` is there.
    template <typename Result>
    void watch(const std::future<Result>& result) {
        for (;; check_signals()) {
            const GilReleased no_gil(*this);
            if (result.wait_for(signal_interval) == std::future_status::ready)
                return;
        }
    }
    offload::StepReport begin_watched_step(const offload::StepRule& rule);

    /// The same after the update and commit under way.
    template <typename Call>
    auto when_idle(Call&& call) {
        if (gradients_ == Gradients::of_next_step)  // in a streamed step `call` says what is wrong
            wait();
        return without_gil(std::forward<Call>(call));
    }

    pid_t process_;
    std::vector<std::string> names_;  ///< as errors show them
    std::vector<HostArray> parameters_;
    offload::HyperGroups groups_;
    Arrays given_;    ///< gradients of the step to come
    Arrays in_step_;  ///< gradients that the step begun last may still read
    Gradients gradients_ = Gradients::of_next_step;
    bool ending_ = false;                ///< the interpreter is
    std::size_t calls_without_gil_ = 0;  ///< under way, of all threads
    std::timed_mutex calls_;             ///< never waited for with the GIL held
    std::unique_ptr<offload::TensorOptimizer> optimizer_;
    std::future<std::optional<offload::TensorCommit>> recovery_;  ///< under way, or not asked for
    std::optional<nanobind::python_error> interrupt_;             ///< for the next wait()
};

/// Declares the constructor and what belongs to it.
void bind_construction(nanobind::class_<BoundOptimizer>& optimizer);

/// Declares spillway._core.TensorOptimizer and StepReport.
void bind_optimizer(nanobind::module_& module);

}  // namespace spillway::integrations
