// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/static_parameter_stream.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "cuda/optimizer_kernels.h"

namespace spillway::engine {
namespace {

/// Where the units of one plane lie, in elements.
struct PlaneLayout {
    std::vector<std::size_t> unit_at;
    std::size_t elements = 0;
    std::size_t largest_further_contribution = 0;
};

PlaneLayout layout_of(const Gpt2Config& config, const offload::ElementOrder& order,
                      StaticParameterStream::Blocks blocks) {
    constexpr auto edge = static_cast<std::size_t>(offload::tensor_alignment_elements);
    constexpr std::size_t first_block = 2;
    PlaneLayout layout;
    const auto units = gpt2_units(config);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
        const auto size = static_cast<std::size_t>(offload::unit_range(order, units[unit]).size());
        const bool repeats = blocks == StaticParameterStream::Blocks::shared &&
                             unit > first_block && unit < first_block + config.layers;
        layout.unit_at.push_back(repeats ? layout.unit_at[first_block] : layout.elements);
        if (!repeats)
            layout.elements += (size + edge - 1) / edge * edge;
        if (order.tensors()[units[unit].first_tensor].contributions > 1)
            layout.largest_further_contribution =
                std::max(layout.largest_further_contribution, size);
    }
    return layout;
}

std::size_t bytes_of(const PlaneLayout& layout) {
    return (2 * layout.elements + layout.largest_further_contribution) * sizeof(float);
}

}  // namespace

StaticParameterStream::StaticParameterStream(cuda::Device& device, cuda::Stream& compute,
                                             const Gpt2Config& config, Blocks blocks)
    : compute_(compute),
      config_(config),
      order_(gpt2_tensors(config)),
      units_(gpt2_units(config)),
      contributions_(units_.size(), 0) {
    PlaneLayout layout = layout_of(config, order_, blocks);
    buffer_ = device.allocate(bytes_of(layout));
    plane_elements_ = layout.elements;
    unit_at_ = std::move(layout.unit_at);
}

StaticParameterStream::~StaticParameterStream() {
    try {
        compute_.synchronize();
    } catch (...) {
        // What failed in the stream belongs to whoever waits for its results.
    }
}

std::size_t StaticParameterStream::device_bytes(const Gpt2Config& config, Blocks blocks) {
    return bytes_of(layout_of(config, offload::ElementOrder(gpt2_tensors(config)), blocks));
}

std::size_t StaticParameterStream::tensor_at(offload::TensorId tensor) const {
    const auto after = std::upper_bound(
        units_.begin(), units_.end(), tensor,
        [](offload::TensorId id, const offload::Unit& unit) { return id < unit.first_tensor; });
    const auto unit = static_cast<std::size_t>(after - units_.begin()) - 1;
    return unit_at_[unit] + static_cast<std::size_t>(order_.range(tensor).begin -
                                                     order_.range(units_[unit].first_tensor).begin);
}

float* StaticParameterStream::gradients() const {
    return buffer_.as<float>() + plane_elements_;
}

float* StaticParameterStream::further_contribution() const {
    return buffer_.as<float>() + 2 * plane_elements_;
}

void StaticParameterStream::write_weights(offload::TensorId tensor, std::span<const float> values) {
    const auto needed = static_cast<std::size_t>(order_.range(tensor).size());
    if (values.size() != needed)
        throw std::invalid_argument(fmt::format("tensor '{}' has {} elements; {} values were given",
                                                order_.tensors()[tensor].name, needed,
                                                values.size()));
    float* to = buffer_.as<float>() + tensor_at(tensor);
    compute_.copy_to_device(reinterpret_cast<std::byte*>(to),
                            reinterpret_cast<const std::byte*>(values.data()), values.size_bytes());
    compute_.synchronize();
}

void StaticParameterStream::initialise(std::uint64_t seed) {
    std::vector<float> values;
    for (offload::TensorId tensor = 0; tensor < order_.tensors().size(); ++tensor) {
        values.resize(static_cast<std::size_t>(order_.range(tensor).size()));
        gpt2_initial_values(config_, seed, tensor, 0, values);
        write_weights(tensor, values);
    }
}

void StaticParameterStream::read_gradient(offload::TensorId tensor, std::span<float> values) {
    const auto needed = static_cast<std::size_t>(order_.range(tensor).size());
    if (values.size() != needed)
        throw std::invalid_argument(
            fmt::format("the gradient of tensor '{}' has {} elements; room for {} was given",
                        order_.tensors()[tensor].name, needed, values.size()));
    compute_.copy_to_host(reinterpret_cast<std::byte*>(values.data()),
                          reinterpret_cast<const std::byte*>(gradients() + tensor_at(tensor)),
                          values.size_bytes());
    compute_.synchronize();
}

const float* StaticParameterStream::acquire_weights(std::size_t unit) {
    return buffer_.as<float>() + unit_at_.at(unit);
}

void StaticParameterStream::release_weights(std::size_t) {}

float* StaticParameterStream::acquire_gradient(std::size_t unit) {
    return contributions_.at(unit) == 0 ? gradients() + unit_at_[unit] : further_contribution();
}

void StaticParameterStream::release_gradient(std::size_t unit) {
    if (contributions_.at(unit) > 0) {
        float* sum = gradients() + unit_at_[unit];
        const float* further = further_contribution();
        const auto count =
            static_cast<std::size_t>(offload::unit_range(order_, units_[unit]).size());
        if (auto* const kernels = compute_.kernels())
            cuda::add_gradient(*kernels, sum, further, count);
        else
            compute_.launch("add_contribution", [sum, further, count] {
                for (std::size_t i = 0; i < count; ++i)
                    sum[i] += further[i];
            });
    }
    const auto expected = order_.tensors()[units_[unit].first_tensor].contributions;
    contributions_[unit] = (contributions_[unit] + 1) % expected;
}

}  // namespace spillway::engine
