// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/weights/pass_ends.h"

namespace spillway::offload::detail {

PassEnds::PassEnds(const GroupContext& context)
    : context_(context), since_s_(context.members.size()) {}

void PassEnds::rank_ended(unsigned rank) {
    const auto lock = context_.monitor.lock();
    context_.record(rank).trace.pass_waits.begin_wait();
    since_s_[rank] = now_s();
    if (++ended_ < since_s_.size())
        return;
    end_waits(StallCause::devices, since_s_[rank]);
    for (unsigned other = 0; other < since_s_.size(); ++other)
        context_.record(other).trace.pass_waits.begin_wait();
}

void PassEnds::pass_ended() {
    const auto lock = context_.monitor.lock();
    end_waits(StallCause::link, now_s());
    ended_ = 0;
}

void PassEnds::end_waits(StallCause cause, double at_s) {
    for (unsigned rank = 0; rank < since_s_.size(); ++rank) {
        auto& record = context_.record(rank);
        record.trace.pass_waits.end_wait(trace_cause(cause));
        record.stalls.add(cause, at_s - since_s_[rank]);
        since_s_[rank] = at_s;
    }
}

}  // namespace spillway::offload::detail
