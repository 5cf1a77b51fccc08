// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace/engine_trace.h"

namespace spillway::offload::detail {
namespace {

using Cause = TraceCause;

void add_compute(StepTrace& trace, EngineTrace& rows) {
    // Idle without a wait of its own it is not fed: the loop around the steps.
    const auto lane = trace.add_lane({"compute", Cause::compute, {}});
    rows.compute = trace.add_row(lane);
    rows.compute_stalls = trace.add_wait_row(lane, "compute waits");
    rows.driver_stalls = trace.add_wait_row(lane, "step waits");
}

void add_weights(StepTrace& trace, EngineTrace& rows, cuda::MemoryKind device) {
    const bool has_link = device == cuda::MemoryKind::device;
    // Whoever brings weights waits for a place that compute must leave, if not for the state.
    const std::vector<Cause> feeding{Cause::compute, Cause::cpu, Cause::commit, Cause::nvme_read};
    std::vector<Cause> joining = feeding;
    if (has_link)
        joining.insert(joining.begin(), Cause::link);
    const auto feeder =
        has_link ? trace.add_lane({"link up", Cause::link, feeding}) : std::size_t{0};
    if (has_link)
        rows.weights_up = trace.add_row(feeder);
    const auto joiner = trace.add_lane({"weights", Cause::weights, joining});
    rows.weights = trace.add_row(joiner);
    rows.weight_waits = trace.add_wait_row(has_link ? feeder : joiner, "weight waits");
}

void add_gradients(StepTrace& trace, EngineTrace& rows, cuda::MemoryKind device) {
    std::vector<Cause> sources{Cause::compute, Cause::nvme_write, Cause::cpu};
    if (device == cuda::MemoryKind::device) {
        std::vector<Cause> link_sources = sources;
        link_sources.insert(link_sources.begin(), Cause::gradients);
        rows.gradients_down =
            trace.add_row(trace.add_lane({"link down", Cause::link, link_sources}));
        sources.insert(sources.begin(), Cause::link);
    }
    rows.gradients = trace.add_row(trace.add_lane({"gradients", Cause::gradients, sources}));
}

void add_updates(StepTrace& trace, EngineTrace& rows) {
    const auto update = trace.add_lane({"update",
                                        Cause::cpu,
                                        {Cause::commit, Cause::compute, Cause::link,
                                         Cause::gradients, Cause::nvme_write, Cause::nvme_read}});
    rows.update = trace.add_row(update);
    rows.update_waits = trace.add_wait_row(update, "update waits");
    rows.commit = trace.add_row(trace.add_lane(
        {"commit",
         Cause::commit,
         {Cause::cpu, Cause::compute, Cause::nvme_read, Cause::nvme_write, Cause::gradients}}));
}

}  // namespace

EngineTrace trace_engine(StepTrace* trace, cuda::MemoryKind device) {
    EngineTrace rows;
    if (trace == nullptr)
        return rows;
    add_compute(*trace, rows);
    add_weights(*trace, rows, device);
    add_gradients(*trace, rows, device);
    add_updates(*trace, rows);
    return rows;
}

void trace_activations(StepTrace* trace, EngineTrace& rows) {
    if (trace == nullptr)
        return;
    const auto lane = trace->add_lane(
        {"layer inputs", Cause::link, {Cause::nvme_read, Cause::nvme_write, Cause::compute}});
    rows.inputs = trace->add_row(lane);
    rows.input_waits = trace->add_wait_row(lane, "layer input waits");
}

EngineTrace trace_updates(StepTrace* trace) {
    EngineTrace rows;
    if (trace != nullptr)
        add_updates(*trace, rows);
    return rows;
}

}  // namespace spillway::offload::detail
