// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/tensor_model.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "cpu_optim/split_master.h"

namespace spillway::testing {
namespace {

using cpu_optim::GradientType;
using offload::ParameterType;

std::uint64_t hash(std::uint64_t value) {
    value ^= value >> 31U;
    value *= 0x9E3779B97F4A7C15U;
    value ^= value >> 29U;
    value *= 0xBF58476D1CE4E5B9U;
    return value ^ value >> 32U;
}

/// In [-1, 1), with at most 7 significant bits, so that bf16 and fp16 hold it exactly.
float coarse(std::uint64_t seed) {
    return static_cast<float>(static_cast<int>(hash(seed) % 128U) - 64) / 64.0f;
}

float gradient_value(std::size_t tensor, std::uint64_t iteration, std::size_t element) {
    const auto seed = hash(iteration * 1000003U + tensor * 7919U) + element;
    const auto scale = std::ldexp(1.0f, -static_cast<int>(hash(seed + 5) % 8U));
    return coarse(seed) * scale;
}

std::uint16_t fp16_bits(float value) {
    // Exact for the values above: 7 significant bits, exponents of fp16's normal range or zero.
    if (value == 0)
        return 0;
    const auto u = std::bit_cast<std::uint32_t>(value);
    const auto sign = (u >> 16U) & 0x8000U;
    const auto exponent = static_cast<std::uint32_t>((u >> 23U & 0xFFU) - 127U + 15U);
    return static_cast<std::uint16_t>(sign | exponent << 10U | (u >> 13U & 0x3FFU));
}

ClientTensorValues tensor(std::string name, std::vector<std::uint64_t> shape, ParameterType type,
                          std::uint32_t group) {
    ClientTensorValues values;
    values.name = std::move(name);
    values.shape = std::move(shape);
    values.type = type;
    values.group = group;
    std::size_t count = 1;
    for (const auto extent : values.shape)
        count *= static_cast<std::size_t>(extent);
    for (std::size_t i = 0; i < count; ++i) {
        const float value = coarse(i + 31 * values.name.size()) * 0.5f;
        if (type == ParameterType::fp32)
            values.fp32.push_back(value);
        else
            values.bf16.push_back(cpu_optim::split(value).hi);
    }
    return values;
}

}  // namespace

std::size_t ClientTensorValues::elements() const noexcept {
    return type == ParameterType::fp32 ? fp32.size() : bf16.size();
}

void* ClientTensorValues::data() noexcept {
    return type == ParameterType::fp32 ? static_cast<void*>(fp32.data())
                                       : static_cast<void*>(bf16.data());
}

std::vector<ClientTensorValues> client_model() {
    std::vector<ClientTensorValues> model;
    model.push_back(tensor("embedding", {300, 100}, ParameterType::fp32, 0));
    model.push_back(tensor("norm", {257}, ParameterType::bf16, 1));
    model.push_back(tensor("empty", {0, 7}, ParameterType::fp32, 0));
    model.push_back(tensor("projection", {16385}, ParameterType::bf16, 0));
    model.push_back(tensor("one", {}, ParameterType::fp32, 1));
    model.push_back(tensor("aligned", {2, 16384}, ParameterType::fp32, 0));
    model.push_back(tensor("rare", {5000}, ParameterType::fp32, 1));
    model.push_back(tensor("head", {350000}, ParameterType::bf16, 0));
    model[1].gradient_type = GradientType::bf16;
    model[3].gradient_type = GradientType::fp16;
    model[6].gradient_every = 3;
    model[7].gradient_type = GradientType::bf16;
    model[5].gradient_every = 2;
    return model;
}

std::vector<ClientTensorValues> matrix_model() {
    auto model = client_model();
    model.push_back(tensor("wide", {3, 40001}, ParameterType::fp32, 0));
    model.push_back(tensor("narrow", {20000, 3}, ParameterType::bf16, 1));
    model.push_back(tensor("kernels", {40, 33, 5, 7}, ParameterType::fp32, 0));
    model.push_back(tensor("single", {1, 1, 1}, ParameterType::bf16, 0));
    model[9].gradient_type = GradientType::bf16;
    return model;
}

std::vector<offload::Parameter> parameters_of(std::vector<ClientTensorValues>& model) {
    std::vector<offload::Parameter> parameters;
    for (auto& values : model)
        parameters.push_back({values.name, values.shape, values.type, values.group, values.data()});
    return parameters;
}

std::vector<std::byte> gradient_bytes_of(const ClientTensorValues& values, std::size_t index,
                                         std::uint64_t iteration) {
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < values.elements(); ++i) {
        const float value = gradient_value(index, iteration, i);
        const auto append = [&](auto bits) {
            const auto at = bytes.size();
            bytes.resize(at + sizeof bits);
            std::memcpy(bytes.data() + at, &bits, sizeof bits);
        };
        if (values.gradient_type == GradientType::fp32)
            append(value);
        else if (values.gradient_type == GradientType::bf16)
            append(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16U));
        else
            append(fp16_bits(value));
    }
    return bytes;
}

std::vector<std::uint32_t> bits_of(const std::vector<ClientTensorValues>& model) {
    std::vector<std::uint32_t> bits;
    for (const auto& values : model) {
        for (const auto value : values.fp32)
            bits.push_back(std::bit_cast<std::uint32_t>(value));
        bits.insert(bits.end(), values.bf16.begin(), values.bf16.end());
    }
    return bits;
}

ReferenceOptimizer::ReferenceOptimizer(std::vector<ClientTensorValues>& model,
                                       std::vector<cpu_optim::HyperParameters> groups,
                                       cpu_optim::StateFormat format)
    : model_(model), groups_(std::move(groups)), steps_(model.size(), 0) {
    copy_weights();
    for (const auto& values : model_)
        state_.emplace_back(format, values.elements());
}

ReferenceOptimizer::ReferenceOptimizer(std::vector<ClientTensorValues>& model,
                                       std::vector<cpu_optim::LayerwiseHyperParameters> groups,
                                       cpu_optim::StateFormat format)
    : model_(model), layerwise_(std::move(groups)), steps_(model.size(), 0) {
    copy_weights();
    const auto all = order();
    for (offload::TensorId tensor = 0; tensor < model_.size(); ++tensor) {
        layers_.emplace_back(format, model_[tensor].elements());
        first_in_order_.push_back(all.range(tensor).begin);
    }
}

ReferenceOptimizer::ReferenceOptimizer(std::vector<ClientTensorValues>& model,
                                       std::vector<cpu_optim::AdafactorHyperParameters> groups)
    : model_(model), adafactor_(std::move(groups)), steps_(model.size(), 0) {
    copy_weights();
    const auto all = order();
    for (offload::TensorId tensor = 0; tensor < model_.size(); ++tensor)
        factored_.emplace_back(model_[tensor].shape, all.range(tensor).begin);
}

offload::ElementOrder ReferenceOptimizer::order() const {
    std::vector<offload::TensorSpec> specs;
    for (const auto& values : model_)
        specs.push_back({values.name, values.shape, values.group, 1});
    return offload::ElementOrder(std::move(specs));
}

void ReferenceOptimizer::copy_weights() {
    for (const auto& values : model_) {
        masters_.push_back(values.fp32);
        for (const auto hi : values.bf16)
            masters_.back().push_back(cpu_optim::join({hi, 0}));
    }
}

void ReferenceOptimizer::update(std::size_t index, const std::vector<float>& gradients,
                                double gradient_scale) {
    const auto group = model_[index].group;
    const auto step = ++steps_[index];
    const cpu_optim::RoundingStream stream{
        .seed = client_rounding_seed, .tensor = index, .step = step};
    if (!adafactor_.empty())
        factored_[index].update(adafactor_[group], step, gradient_scale, masters_[index],
                                gradients);
    else if (!layerwise_.empty())
        layers_[index].update(layerwise_[group], gradient_scale, stream, first_in_order_[index],
                              masters_[index], gradients);
    else
        state_[index].update(cpu_optim::make_coefficients(groups_[group], step, gradient_scale),
                             stream, masters_[index], gradients);
}

void ReferenceOptimizer::step(std::uint64_t iteration, double gradient_scale) {
    for (std::size_t index = 0; index < model_.size(); ++index) {
        auto& values = model_[index];
        if (!values.has_gradient(iteration))
            continue;
        std::vector<float> gradients;
        for (std::size_t i = 0; i < values.elements(); ++i)
            gradients.push_back(gradient_value(index, iteration, i));
        update(index, gradients, gradient_scale);
        const auto& masters = masters_[index];
        for (std::size_t i = 0; i < values.elements(); ++i) {
            if (values.type == ParameterType::fp32)
                values.fp32[i] = masters[i];
            else
                values.bf16[i] = cpu_optim::split(masters[i]).hi;
        }
    }
}

}  // namespace spillway::testing
