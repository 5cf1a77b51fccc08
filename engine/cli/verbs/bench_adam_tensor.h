// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/layerwise.h"
#include "engine/cli/verbs/bench_adam_run.h"
#include "nvme/huge_page_arena.h"

namespace spillway::engine {

/// Elements that an update or a comparison may begin at a multiple of.
inline constexpr std::uint64_t bench_step_elements = 256;

/// What moves elements in one step.
using UpdateRule = std::variant<cpu_optim::ElementwiseCoefficients, cpu_optim::LayerwiseStep>;

/// The planes of some elements of the tensor whose updates are measured, in the formats asked for,
/// on huge pages. Thread-safe for calls on different elements.
class AdamBenchTensor {
  public:
    /// `first`: the number of its first element in the whole tensor, a multiple of
    /// bench_step_elements; `options` must outlive it. State is zeros.
    AdamBenchTensor(const AdamBenchOptions& options, std::uint64_t first, std::uint64_t elements);
    [[nodiscard]] static std::uint64_t needed_bytes(const AdamBenchOptions& options,
                                                    std::uint64_t elements);
    /// Read and written by an update: by each pass each plane that it looks at once.
    [[nodiscard]] static double moved_bytes_per_parameter(const AdamBenchOptions& options);

    /// Weights and gradients of its elements begin .. begin + count, by their numbers alone.
    void fill(std::uint64_t begin, std::uint64_t count) const;
    /// Pass 1 of an optimizer of whole tensors over its elements begin .. begin + count; `begin` is
    /// a multiple of bench_step_elements.
    [[nodiscard]] cpu_optim::LayerSums measure(cpu_optim::Isa isa,
                                               const cpu_optim::LayerwiseCoefficients& coefficients,
                                               std::uint64_t begin, std::uint64_t count) const;
    /// Updates the same elements. Returns the weights that are not finite.
    [[nodiscard]] std::size_t update(cpu_optim::Isa isa, const UpdateRule& rule, std::uint64_t step,
                                     std::uint64_t begin, std::uint64_t count) const;
    /// Squares and non-finite values of the gradients begin .. begin + count.
    [[nodiscard]] cpu_optim::GradientScan scan(cpu_optim::Isa isa, std::uint64_t begin,
                                               std::uint64_t count) const;
    /// Whether `part`, whose elements it holds too, is the same in every bit of weights and state.
    [[nodiscard]] bool agrees_with(const AdamBenchTensor& part) const;
    [[nodiscard]] nvme::HugePages huge_pages() const { return arena_.huge_pages(); }

  private:
    /// Scales have one byte for all elements of a step.
    struct Plane {
        std::byte* data = nullptr;
        std::uint64_t step_bytes = 0;
    };
    template <typename T>
    [[nodiscard]] static T* at(const Plane& plane, std::uint64_t begin) {
        return reinterpret_cast<T*>(plane.data + begin / bench_step_elements * plane.step_bytes);
    }
    template <class Use>
    auto with_run(std::uint64_t begin, std::uint64_t count, const Use& use) const;
    template <class Run>
    [[nodiscard]] Run run_of(std::uint64_t begin, std::uint64_t count) const;
    void fill_element(std::uint64_t i) const;

    const AdamBenchOptions& options_;
    std::uint64_t first_;
    std::uint64_t elements_;
    nvme::HugePageArena arena_;
    std::vector<Plane> weights_;  ///< a master, or weight and residue
    std::vector<Plane> state_;    ///< int8: codes, then scales
    Plane gradient_;
};

}  // namespace spillway::engine
