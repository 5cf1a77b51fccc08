// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/element_order.h"

#include <algorithm>
#include <limits>
#include <set>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace spillway::offload {
namespace {

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
    return (value + step - 1) / step * step;
}

/// Far below 2^64 bytes per plane, so that no later product overflows.
constexpr std::uint64_t most_elements = std::uint64_t{1} << 56;

std::uint64_t checked_elements(const TensorSpec& tensor) {
    std::uint64_t elements = 1;
    for (const auto extent : tensor.shape) {
        if (extent != 0 && elements > most_elements / extent)
            throw std::invalid_argument(
                fmt::format("tensor '{}': its shape has more than 2^56 elements", tensor.name));
        elements *= extent;
    }
    return elements;
}

}  // namespace

std::uint64_t TensorSpec::elements() const noexcept {
    std::uint64_t product = 1;
    for (const auto extent : shape)
        product *= extent;
    return product;
}

ElementOrder::ElementOrder(std::vector<TensorSpec> tensors) : tensors_(std::move(tensors)) {
    if (tensors_.empty())
        throw std::invalid_argument("a model needs at least one tensor; none were given");
    std::set<std::string> names;
    std::uint64_t next = 0;
    for (const auto& tensor : tensors_) {
        if (tensor.name.empty())
            throw std::invalid_argument(fmt::format("tensor {} has an empty name", ranges_.size()));
        if (!names.insert(tensor.name).second)
            throw std::invalid_argument(
                fmt::format("two tensors are named '{}'; names must differ", tensor.name));
        const auto elements = checked_elements(tensor);
        ranges_.push_back({next, next + elements});
        parameters_ += elements;
        next = round_up(next + elements, tensor_alignment_elements);
        if (next > most_elements)
            throw std::invalid_argument("the tensors together have more than 2^56 elements");
    }
    length_ = next;
    if (length_ == 0)
        throw std::invalid_argument("all tensors are empty; at least one element is needed");
}

ElementOrder::TensorSpan ElementOrder::tensors_in(ElementRange range) const noexcept {
    const auto ends_after = [](std::uint64_t position, const ElementRange& tensor) {
        return position < tensor.end;
    };
    const auto first = std::upper_bound(ranges_.begin(), ranges_.end(), range.begin, ends_after);
    const auto last = std::lower_bound(
        first, ranges_.end(), range.end,
        [](const ElementRange& tensor, std::uint64_t end) { return tensor.begin < end; });
    return {static_cast<TensorId>(first - ranges_.begin()),
            static_cast<TensorId>(last - ranges_.begin())};
}

ElementRange unit_range(const ElementOrder& order, const Unit& unit) {
    if (unit.tensor_count == 0)
        throw std::invalid_argument("a unit needs at least one tensor");
    return {order.range(unit.first_tensor).begin,
            order.range(unit.first_tensor + unit.tensor_count - 1).end};
}

}  // namespace spillway::offload
