// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/state_format.h"
#include "engine/plan/bound.h"
#include "offload/hyper_groups.h"
#include "offload/io_options.h"
#include "offload/plan.h"
#include "offload/step_trace.h"

namespace spillway::engine {

/// What `spillway bench step` measures: optimizer steps in the loop, without a model. bf16 weights
/// lie in the client's memory, residues and state where the budget puts them; bf16 gradients, a few
/// tensors' worth of them used in turn, no clipping.
struct StepBenchOptions {
    offload::HyperGroups hyper{cpu_optim::AdamHyperParameters{}};  ///< one group
    cpu_optim::StateFormat state = cpu_optim::StateFormat::fp32;
    std::uint64_t elements = std::uint64_t{64} << 20;
    std::size_t host_bytes = 0;                    ///< state, residues and staging
    std::vector<std::filesystem::path> nvme = {};  ///< none: all must fit host_bytes
    std::vector<offload::DriveIo> drive_io = {};   ///< of each of those
    offload::Durability durability = offload::Durability::on;
    std::size_t chunk_bytes = 0;  ///< as PlanRequest::chunk_bytes
    offload::Windows windows = {};
    std::size_t threads = 1;
    cpu_optim::Isa isa = cpu_optim::Isa::scalar;
    std::filesystem::path trace = {};                   ///< empty: none is made
    std::uint32_t steps = 5;                            ///< timed; one more goes before them
    std::function<bool()> stop = [] { return false; };  ///< asked between steps
};

/// Times are medians over the steps. Before each step the drives are measured for a moment, so that
/// bound and step meet the same machine; `attained` is the median of each step's own ratio.
struct StepBenchResult {
    double predicted_s = 0;  ///< from the first rates, before any step was timed
    double measured_s = 0;
    double bound_s = 0;
    std::string bound_by;
    double attained = 0;
    double least_attained = 0;
    double most_attained = 0;
    double nvme_bytes_per_parameter = 0;  ///< read and written by one step
    MachineRates rates;                   ///< medians
    double update_parameters_per_s = 0;   ///< the kernel alone, everything in memory
    double stall_nvme_read_s = 0;         ///< of one step, on average
    double stall_nvme_write_s = 0;
    std::uint64_t state_bytes = 0;           ///< at rest, over both tiers
    std::uint64_t resident_state_bytes = 0;  ///< of these, in memory
    std::size_t host_bytes = 0;              ///< allocated, by the ledger
    std::string io_backend;
    std::uint64_t verified_elements = 0;  ///< equal to the scalar reference, bit by bit
    std::vector<std::string> notes;
    std::optional<offload::TraceSummary> trace = std::nullopt;
    bool interrupted = false;  ///< before the last step: times and ratios are then 0
};

/// Memory that run_step_bench() takes at most, budget included. Throws std::invalid_argument if
/// `elements` is 0 or more than any machine holds.
[[nodiscard]] std::uint64_t needed_bytes(const StepBenchOptions& options);

/// With durability the run's files lie in a folder of its own below the first of `nvme`, removed at
/// the end. Throws offload::PlanRefused or std::invalid_argument on what cannot run,
/// std::system_error on I/O errors, std::runtime_error naming the element whose bits are wrong.
[[nodiscard]] StepBenchResult run_step_bench(const StepBenchOptions& options);

}  // namespace spillway::engine
