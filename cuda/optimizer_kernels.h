// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/gradient_scan.h"
#include "cpu_optim/lossy_state.h"
#include "cpu_optim/weight_average.h"
#include "cuda/kernel_stream.h"

/// cpu_optim/ on a device: the same results to the bit. All pointers are device pointers; calls
/// enqueue and return. They throw std::invalid_argument, with nothing queued, for planes that are
/// missing or not allocated on the device.
namespace spillway::cuda {

/// cpu_optim::update_run(). The number of masters to be counted is added to `counted`.
void update_run(KernelStream& stream, const cpu_optim::ElementwiseCoefficients& coefficients,
                const cpu_optim::ElementwiseRun& run, unsigned long long* counted);

/// The same for state in a lossy format. Codes lie at a multiple of 4 bytes.
void update_run(KernelStream& stream, const cpu_optim::ElementwiseCoefficients& coefficients,
                const cpu_optim::RoundingStream& rounding, const cpu_optim::Bf16Run& run,
                unsigned long long* counted);
void update_run(KernelStream& stream, const cpu_optim::ElementwiseCoefficients& coefficients,
                const cpu_optim::RoundingStream& rounding, const cpu_optim::Int8Run& run,
                unsigned long long* counted);

/// cpu_optim::update_average().
void update_average(KernelStream& stream, const cpu_optim::AverageCoefficients& coefficients,
                    const cpu_optim::AverageRun& run);

/// cpu_optim::scan_gradient() of each run of `tile_elements`, a multiple of 16; the last may be
/// shorter. `sums` and `nonfinite` have one place for each.
void scan_gradient(KernelStream& stream, const void* gradient, cpu_optim::GradientType type,
                   std::size_t elements, std::size_t tile_elements, double* sums,
                   unsigned long long* nonfinite);

/// cpu_optim::add_gradient().
void add_gradient(KernelStream& stream, float* into, const float* from, std::size_t elements);

/// to[i] = from[i], exactly; `type` is bf16 or fp16.
void widen_gradient(KernelStream& stream, const std::uint16_t* from, cpu_optim::GradientType type,
                    float* to, std::size_t elements);

/// cpu_optim::join_master().
void join_master(KernelStream& stream, const std::uint16_t* weight, const std::int16_t* residue,
                 float* master, std::size_t elements);

/// cpu_optim::split_master(). The number of masters without a finite half is added to `counted`.
void split_master(KernelStream& stream, const float* master, std::uint16_t* weight,
                  std::int16_t* residue, std::size_t elements, unsigned long long* counted);

/// `tiles` tiles of 16384 elements, each the weight plane and then the residue plane, become fp32
/// where they lie.
void join_tiles(KernelStream& stream, float* data, std::size_t tiles);

}  // namespace spillway::cuda
