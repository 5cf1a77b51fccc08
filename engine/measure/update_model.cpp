// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/update_model.h"

#include <algorithm>

#include <fmt/format.h>

namespace spillway::engine {
namespace {

constexpr std::size_t weight_bytes = 2;
constexpr std::size_t gradient_bytes = 4;
constexpr std::uint64_t columns = 1024;  ///< of tensors, most of a model's being matrices

std::size_t whole_pages(std::uint64_t bytes) {
    constexpr auto page = nvme::HugePageArena::page_bytes;
    return (static_cast<std::size_t>(bytes) + page - 1) / page * page;
}

}  // namespace

UpdateModel::UpdateModel(std::uint64_t elements, std::uint64_t gradient_elements)
    : elements_(elements),
      gradient_elements_(std::min(elements, gradient_elements)),
      weights_(static_cast<std::size_t>(elements_) * weight_bytes),
      gradients_(static_cast<std::size_t>(gradient_elements_) * gradient_bytes) {
    // Ordinary values of both signs, from hashes of their number (Knuth's multiplier).
    const auto hash_of = [](std::uint64_t i) {
        return static_cast<std::uint32_t>(i * 2654435761U);
    };
    for (std::uint64_t i = 0; i < elements_; ++i) {
        const auto hash = hash_of(i);
        weights()[i] = static_cast<std::uint16_t>((hash & 0x8000U) | 0x3C00U | (hash & 0x7FU));
    }
    for (std::uint64_t i = 0; i < gradient_elements_; ++i)
        gradients()[i] = (static_cast<float>(hash_of(i) >> 8 & 0xFFFFU) - 32767.5F) * 1e-8F;
}

std::size_t UpdateModel::memory_bytes(std::uint64_t elements,
                                      std::uint64_t gradient_elements) noexcept {
    return whole_pages(elements * weight_bytes) +
           whole_pages(std::min(elements, gradient_elements) * gradient_bytes);
}

std::vector<offload::Parameter> UpdateModel::parameters() const {
    std::vector<offload::Parameter> all;
    const auto shape_of = [](std::uint64_t count) -> std::vector<std::uint64_t> {
        if (count % columns != 0)
            return {count};
        return {count / columns, columns};
    };
    for (std::uint64_t first = 0; first < elements_; first += tensor_elements)
        all.push_back({fmt::format("{}", all.size()),
                       shape_of(std::min(tensor_elements, elements_ - first)),
                       offload::ParameterType::bf16, 0, weights() + first});
    return all;
}

offload::Gradient UpdateModel::gradient(offload::TensorId tensor) const {
    return {gradients() + tensor * tensor_elements % gradient_elements_,
            cpu_optim::GradientType::fp32};
}

std::uint16_t* UpdateModel::weights() const {
    return reinterpret_cast<std::uint16_t*>(weights_.bytes().data());
}

float* UpdateModel::gradients() const {
    return reinterpret_cast<float*>(gradients_.bytes().data());
}

}  // namespace spillway::engine
