// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "cuda/device.h"
#include "offload/group_plan.h"
#include "offload/offload_engine.h"

namespace spillway::offload {

/// A rank could not go on or was waited for in vain; what() names it.
class RankFailed : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A device and the stream on which its client computes.
struct GroupMember {
    cuda::Device& device;
    cuda::Stream& compute;
};

struct GroupOptions {
    double patience_s = 600;  ///< for a rank that does not come
};

/// Several devices of one process that share the work of a step: each rank has some of its
/// sequences, and all train one model, whose state one engine keeps. Sharded as ZeRO's third stage
/// has it (Rajbhandari et al. 2020, arXiv:1910.02054), with its state on the host as in
/// ZeRO-Infinity (arXiv:2104.07857): of every unit a rank brings its own share over its own link,
/// the others' come from the other devices just ahead of use, and its share of the gradient is what
/// it takes to the host.
///
/// Gradients are not reduced after the fact: rank r goes on with the sum that rank r - 1 left, as a
/// further micro-batch does, and the last has the sum over all sequences in their order. So the
/// result has the bits of one device, whatever their number; the price is that rank r is r units
/// behind rank 0 in the backward pass.
///
/// Calls of one rank come from its thread inside run_pass(), the others from the thread that drives
/// the engine. Errors: what a rank throws ends the pass for all ranks and is thrown by run_pass()
/// as RankFailed with the rank's number; what the engine throws, as it is. A group that failed
/// stays failed. The devices are GPUs, or simulated (std::invalid_argument); the engine's host
/// memory is best page-locked for them (cuda::make_page_locked_host).
class DeviceGroup {
  public:
    /// `engine` computes in host memory and has the same order and units; both it and the members
    /// outlive the group. Allocates plan.device_bytes on each device.
    DeviceGroup(OffloadEngine& engine, const ElementOrder& order, std::span<const Unit> units,
                const GroupPlan& plan, std::vector<GroupMember> members,
                const GroupOptions& options);
    ~DeviceGroup();
    DeviceGroup(const DeviceGroup&) = delete;
    DeviceGroup& operator=(const DeviceGroup&) = delete;

    /// As OffloadEngine::begin_pass(): of all ranks alike.
    void begin_pass(std::span<const std::size_t> uses, WeightKind kind = WeightKind::newest);
    /// Runs `work(rank)` for every rank on a thread of its own, and returns when all are done and
    /// every gradient has been handed to the engine. `work` acquires all that was announced and
    /// waits for its compute stream at its end.
    void run_pass(const std::function<void(unsigned)>& work);

    // ---- as OffloadEngine has them, of one rank
    [[nodiscard]] const float* acquire_weights(unsigned rank, std::size_t unit);
    void release_weights(unsigned rank, std::size_t unit);
    /// Of every rank but the first the room holds, on the compute stream, what the one before it
    /// handed over.
    [[nodiscard]] float* acquire_gradient(unsigned rank, std::size_t unit);
    void release_gradient(unsigned rank, std::size_t unit);

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::offload
