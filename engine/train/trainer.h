// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>

#include "engine/cli/console.h"
#include "engine/train/run_setup.h"
#include "engine/train/stop_request.h"
#include "engine/train/train_result.h"

namespace spillway::engine {

/// The training loop: data window, pass, gradient norm, update, commit, until the run's length is
/// reached or a stop is asked for. An update runs while the next pass follows. Everything that
/// changes the weights depends on the settings that are fixed by the run, on iteration and update,
/// and, with a time budget, on the progress it logs. For one thread.
class Trainer {
  public:
    /// Takes the folder of `setup`; both arguments must outlive the trainer. Recovers the newest
    /// commit, or makes the first.
    Trainer(RunSetup& setup, Console& console);
    ~Trainer();
    Trainer(const Trainer&) = delete;
    Trainer& operator=(const Trainer&) = delete;

    /// Steps, then a commit, an evaluation and the hash of the weights. After a stop request: the
    /// step at hand, a commit, and no evaluation. Throws offload::NonfiniteGradient and
    /// offload::IntegrityError, std::runtime_error after ten skipped steps in a row; the last
    /// commit stands then.
    [[nodiscard]] TrainResult run(const StopRequest& stop);

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::engine
