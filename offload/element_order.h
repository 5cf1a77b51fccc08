// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// offload/: the memory manager. It knows tensors and groups, tiers and chunks; not transformers.
namespace spillway::offload {

/// Elements of a tile: the unit of arithmetic, checksum and reduction.
inline constexpr std::uint64_t tile_elements = 16384;
/// Every tensor starts on such an edge of the global order (a quantisation block).
inline constexpr std::uint64_t tensor_alignment_elements = 256;

using TensorId = std::uint32_t;

/// A tensor as the client names it. Order of the list = order of execution.
struct TensorSpec {
    std::string name;
    std::vector<std::uint64_t> shape;
    std::uint32_t group = 0;  ///< index into the client's hyper-parameter groups
    std::uint32_t contributions =
        1;  ///< gradients a step brings for it, added in order (a tied tensor: 2)

    [[nodiscard]] std::uint64_t elements() const noexcept;
};

/// A half-open range of the global element order.
struct ElementRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    [[nodiscard]] std::uint64_t size() const noexcept { return end - begin; }
};

/// The one global order of all elements: tensors in execution order, each starting on an edge of
/// `tensor_alignment_elements`; tiles cut that order. It depends on the tensors alone, never on a
/// placement. Immutable, so thread-safe.
class ElementOrder {
  public:
    /// Throws std::invalid_argument on an empty list, a repeated or empty name, or a size that
    /// overflows.
    explicit ElementOrder(std::vector<TensorSpec> tensors);

    [[nodiscard]] std::span<const TensorSpec> tensors() const noexcept { return tensors_; }
    /// The elements of one tensor, without the padding behind it.
    [[nodiscard]] ElementRange range(TensorId tensor) const { return ranges_.at(tensor); }
    /// Sum of the tensors' elements.
    [[nodiscard]] std::uint64_t parameters() const noexcept { return parameters_; }
    /// Length of the order, padding included, without the padding of the last tile.
    [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
    [[nodiscard]] std::uint64_t tiles() const noexcept {
        return (length_ + tile_elements - 1) / tile_elements;
    }
    /// The tensors that have elements inside `range`: [first, last).
    struct TensorSpan {
        TensorId first, last;
    };
    [[nodiscard]] TensorSpan tensors_in(ElementRange range) const noexcept;

  private:
    std::vector<TensorSpec> tensors_;
    std::vector<ElementRange> ranges_;
    std::uint64_t parameters_ = 0;
    std::uint64_t length_ = 0;
};

/// A run of consecutive tensors that are used together (a layer): the unit in which weights come to
/// the device and gradients leave it. On the device a unit is one run of the global order, so a
/// tensor lies at (its range().begin - the unit's range.begin) elements.
struct Unit {
    TensorId first_tensor = 0;
    std::uint32_t tensor_count = 0;
};

/// From the first tensor's first element to the last tensor's last one.
[[nodiscard]] ElementRange unit_range(const ElementOrder& order, const Unit& unit);

}  // namespace spillway::offload
