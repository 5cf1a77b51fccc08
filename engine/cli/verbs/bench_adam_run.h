// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/state_format.h"
#include "nvme/huge_page_arena.h"
#include "offload/hyper_groups.h"

namespace spillway::engine {

enum class MasterForm {
    fp32,   ///< the weight is fp32 and its own master
    split,  ///< a bf16 weight and a residue of 16 bits
};

/// What `spillway bench adam` measures: whole updates of one tensor, in memory, on all threads.
struct AdamBenchOptions {
    offload::HyperGroups hyper{cpu_optim::AdamHyperParameters{}};  ///< one group
    cpu_optim::GradientType gradient = cpu_optim::GradientType::fp32;
    cpu_optim::StateFormat state = cpu_optim::StateFormat::fp32;
    MasterForm weights = MasterForm::fp32;
    std::uint64_t elements = std::uint64_t{64} << 20;
    std::size_t threads = 1;
    cpu_optim::Isa isa = cpu_optim::Isa::scalar;
    std::uint32_t pairs = 9;                            ///< of an update and the passes beside it
    std::function<bool()> stop = [] { return false; };  ///< asked between passes
};

/// Times are medians over the pairs; what is attained is the median of each pair's own ratio.
struct AdamBenchResult {
    double bytes_per_parameter = 0;  ///< read and written; an optimizer of whole tensors reads
                                     ///< twice what its first pass looks at
    double update_s = 0;
    double parameters_per_s = 0;
    double bytes_per_s = 0;
    double dram_bytes_per_s = 0;  ///< of x += 1 in place over as many floats, in four runs
                                  ///< side by side: bytes read and written
    double attained = 0;          ///< bytes_per_s / dram_bytes_per_s
    double least_attained = 0;
    double most_attained = 0;
    double scan_bytes_per_s = 0;  ///< of the gradient, for its norm and what is not finite in it
    double read_bytes_per_s = 0;  ///< of the floats of the in-place pass, which are only read
    double scan_attained = 0;     ///< scan_bytes_per_s / read_bytes_per_s
    std::uint64_t verified_elements = 0;  ///< equal to the scalar reference, bit by bit
    nvme::HugePages huge_pages = nvme::HugePages::refused;
    std::vector<std::string> notes;
    bool interrupted = false;  ///< before the last pair: times and ratios are then 0
};

/// Memory that run_adam_bench() takes. Throws std::invalid_argument if `elements` is 0 or more than
/// any machine holds.
[[nodiscard]] std::uint64_t needed_bytes(const AdamBenchOptions& options);

/// Fills planes on huge pages, runs one pass of each kind (update, in place, scan of the gradient,
/// reading) untimed, then the pairs in turn, so that all meet the same machine, and compares a
/// sample with the scalar reference. An update of whole tensors is both its passes over the one
/// tensor; its reference takes the lengths of steps that were found in them.
/// Throws std::invalid_argument on options that cannot run, std::system_error if the memory is not
/// to be had, std::runtime_error naming the element whose bits are wrong.
[[nodiscard]] AdamBenchResult run_adam_bench(const AdamBenchOptions& options);

}  // namespace spillway::engine
