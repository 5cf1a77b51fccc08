// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace/group_trace.h"

#include <cstddef>

#include <fmt/format.h>

namespace spillway::offload::detail {
namespace {

using Cause = TraceCause;

/// Returns the device's compute lane.
std::size_t add_device(StepTrace& trace, unsigned rank, LayerInputs inputs, EngineTrace& rows) {
    const auto named = [rank](const char* what) { return fmt::format("device {} {}", rank, what); };
    const auto compute = trace.add_lane({named("compute"), Cause::compute, {}});
    rows.compute = trace.add_row(compute);
    rows.compute_stalls = trace.add_wait_row(compute, named("compute waits"));
    rows.pass_waits = trace.add_wait_row(compute, named("pass waits"));
    rows.weights_up =
        trace.add_row(trace.add_lane({named("link up"),
                                      Cause::link,
                                      {Cause::compute, Cause::devices, Cause::weights, Cause::cpu,
                                       Cause::commit, Cause::nvme_read}}));
    const auto exchange = trace.add_lane({named("exchange"),
                                          Cause::devices,
                                          {Cause::compute, Cause::link, Cause::weights, Cause::cpu,
                                           Cause::commit, Cause::nvme_read}});
    rows.gathers = trace.add_row(exchange, named("gathers"));
    rows.taken_over = trace.add_row(exchange, named("gradients in"));
    rows.taken_share = trace.add_row(exchange, named("gradient shares"));
    rows.gradients_down = trace.add_row(trace.add_lane(
        {named("link down"),
         Cause::link,
         {Cause::compute, Cause::devices, Cause::gradients, Cause::nvme_write, Cause::cpu}}));
    if (inputs == LayerInputs::leave) {
        const auto lane = trace.add_lane({named("layer inputs"),
                                          Cause::link,
                                          {Cause::nvme_read, Cause::nvme_write, Cause::compute}});
        rows.inputs = trace.add_row(lane);
        rows.input_waits = trace.add_wait_row(lane, named("layer input waits"));
    }
    return compute;
}

/// Units in host memory, from which and to which all links go.
void add_units(StepTrace& trace, EngineTrace& rows) {
    const auto weights = trace.add_lane(
        {"weights",
         Cause::weights,
         {Cause::link, Cause::compute, Cause::cpu, Cause::commit, Cause::nvme_read}});
    rows.weights = trace.add_row(weights);
    rows.weight_waits = trace.add_wait_row(weights, "weight waits");
    rows.gradients = trace.add_row(
        trace.add_lane({"gradients",
                        Cause::gradients,
                        {Cause::link, Cause::compute, Cause::nvme_write, Cause::cpu}}));
}

}  // namespace

GroupTrace trace_group(StepTrace* trace, unsigned ranks, LayerInputs inputs) {
    GroupTrace rows;
    rows.devices.resize(ranks);
    if (trace == nullptr)
        return rows;
    std::vector<std::size_t> computing;
    for (unsigned rank = 0; rank < ranks; ++rank)
        computing.push_back(add_device(*trace, rank, inputs, rows.devices[rank]));
    rows.engine = trace_updates(trace);
    rows.engine.driver_stalls = trace->add_wait_row(computing, "step waits");
    add_units(*trace, rows.engine);
    return rows;
}

}  // namespace spillway::offload::detail
