// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include "offload/tensor_optimizer.h"

namespace spillway::integrations {

/// How long Ctrl-C may go unseen.
constexpr std::chrono::milliseconds signal_interval{100};

/// Runs the handlers of signals that have come; nanobind::python_error when one raises. With the
/// GIL; in threads other than Python's first it does nothing.
void check_signals();

/// Makes optimizers on threads of its own, since taking much memory or disk is one long call into
/// the kernel. What Ctrl-C leaves unfinished is taken down in the background as soon as that call
/// returns, and is waited for by the next make() and at the interpreter's end: two states never
/// take room at once. Every member is called with the GIL held.
class OptimizerMaker {
  public:
    OptimizerMaker();
    ~OptimizerMaker();
    OptimizerMaker(const OptimizerMaker&) = delete;
    OptimizerMaker& operator=(const OptimizerMaker&) = delete;

    /// What TensorOptimizer's constructor throws, and nanobind::python_error when a signal's
    /// handler raises; then the parameters' values are not read or written any more.
    [[nodiscard]] std::unique_ptr<offload::TensorOptimizer> make(
        std::vector<offload::Parameter> parameters, offload::HyperGroups groups,
        offload::TensorOptimizerOptions options);

    /// Until nothing is left unfinished. Looks for no signals.
    void drain();

  private:
    using Made = std::future<std::unique_ptr<offload::TensorOptimizer>>;

    void wait_for_unfinished();
    void forget_the_parents();

    pid_t process_;
    std::vector<Made> unfinished_;
};

}  // namespace spillway::integrations
