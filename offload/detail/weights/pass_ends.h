// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <vector>

#include "offload/detail/weights/group_context.h"

namespace spillway::offload::detail {

/// What ranks of a DeviceGroup stand still for when they are through with their part of a pass:
/// until the last of them is for other devices, then for the links that bring its gradients down.
class PassEnds {
  public:
    explicit PassEnds(const GroupContext& context);

    /// From the thread of `rank`.
    void rank_ended(unsigned rank);
    /// All have ended, and every gradient has been handed over.
    void pass_ended();

  private:
    void end_waits(StallCause cause, double at_s);

    GroupContext context_;
    std::vector<double> since_s_;  ///< when each began to wait; guarded by the monitor
    unsigned ended_ = 0;           ///< ranks; guarded by the monitor
};

}  // namespace spillway::offload::detail
