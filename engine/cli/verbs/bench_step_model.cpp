// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_step_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>
#include <variant>

#include <fmt/format.h>

#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/float_formats.h"
#include "cpu_optim/lossy_state.h"
#include "cpu_optim/split_master.h"

namespace spillway::engine {
namespace {

/// splitmix64.
std::uint64_t hash_of(std::uint64_t value) {
    auto z = (value + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

/// A bf16 of ordinary size, from 2^-9 to below 2^-1.
std::uint16_t ordinary_bf16(std::uint64_t hash) {
    const auto sign = static_cast<unsigned>(hash >> 63);
    const auto power = 127U - 9U + static_cast<unsigned>(hash >> 32) % 8U;
    return static_cast<std::uint16_t>(sign << 15 | power << 7 | (hash & 0x7fU));
}

std::uint16_t first_weight(std::uint64_t element) {
    return ordinary_bf16(hash_of(element));
}

/// Gradients of tensors that share memory are the same.
std::uint16_t gradient_of(std::uint64_t element) {
    const auto place = element % (bench_gradient_tensors * bench_tensor_elements);
    return ordinary_bf16(hash_of(place ^ 0xA5A5A5A5U));
}

void refuse(std::uint64_t element, float found, std::uint64_t updates, float expected) {
    throw std::runtime_error(
        fmt::format("element {}: the weight is {} after {} updates, and {} by the scalar reference",
                    element, found, updates, expected));
}

bool same_bits(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

using Steps = std::vector<cpu_optim::ElementwiseCoefficients>;

float replayed(const Steps& steps, std::uint64_t element) {
    cpu_optim::ElementwiseElement state{cpu_optim::from_bf16(first_weight(element)), {}};
    const float gradient = cpu_optim::from_bf16(gradient_of(element));
    for (const auto& step : steps)
        state =
            std::visit([&](const auto& rule) { return updated(rule, state, gradient); }, step.rule);
    return state.master;
}

/// Up to a block of elements of one tensor, updated with lossy state by the scalar kernels.
class LossyBlock {
  public:
    LossyBlock(std::uint64_t first, std::size_t elements) : first_(first), elements_(elements) {
        for (std::size_t i = 0; i < elements; ++i) {
            weights_[i] = first_weight(first + i);
            gradients_[i] = gradient_of(first + i);
        }
    }
    void update(const cpu_optim::ElementwiseCoefficients& coefficients,
                cpu_optim::StateFormat format, std::uint64_t step) {
        const cpu_optim::RoundingStream stream{.tensor = first_ / bench_tensor_elements,
                                               .step = step};
        constexpr auto isa = cpu_optim::Isa::scalar;
        if (format == cpu_optim::StateFormat::bf16)
            static_cast<void>(cpu_optim::update_run(isa, coefficients, stream, bf16_run()));
        else
            static_cast<void>(cpu_optim::update_run(isa, coefficients, stream, int8_run()));
    }
    [[nodiscard]] float master(std::size_t i) const {
        return cpu_optim::join({weights_[i], residues_[i]});
    }

  private:
    static constexpr std::size_t most = cpu_optim::block_elements;

    template <class Run>
    Run run() {
        Run run;
        run.elements = elements_;
        run.first_element = first_ % bench_tensor_elements;
        run.weight = weights_.data();
        run.residue = residues_.data();
        run.gradient = gradients_.data();
        run.gradient_type = cpu_optim::GradientType::bf16;
        return run;
    }
    cpu_optim::Bf16Run bf16_run() {
        auto made = run<cpu_optim::Bf16Run>();
        for (std::size_t plane = 0; plane < made.state.size(); ++plane)
            made.state[plane] = bf16_[plane].data();
        return made;
    }
    cpu_optim::Int8Run int8_run() {
        auto made = run<cpu_optim::Int8Run>();
        for (std::size_t plane = 0; plane < made.codes.size(); ++plane) {
            made.codes[plane] = codes_[plane].data();
            made.scales[plane] = &scales_[plane];
        }
        return made;
    }

    std::uint64_t first_;
    std::size_t elements_;
    std::array<std::uint16_t, most> weights_{};
    std::array<std::int16_t, most> residues_{};
    std::array<std::uint16_t, most> gradients_{};
    std::array<std::array<std::uint16_t, most>, cpu_optim::most_lossy_planes> bf16_{};
    std::array<std::array<std::uint8_t, most>, cpu_optim::most_lossy_planes> codes_{};
    std::array<std::uint8_t, cpu_optim::most_lossy_planes> scales_{};
};

float found_at(offload::TensorOptimizer& optimizer, std::uint64_t element) {
    float found = 0;
    optimizer.read_masters(static_cast<offload::TensorId>(element / bench_tensor_elements),
                           element % bench_tensor_elements, {&found, 1});
    return found;
}

std::uint64_t verify_elements(std::uint64_t elements, const Steps& steps,
                              offload::TensorOptimizer& optimizer) {
    constexpr std::uint64_t most_samples = 5'000;
    const auto samples = std::min(most_samples, elements);
    for (std::uint64_t n = 0; n < samples; ++n) {
        const auto i = n * elements / samples;
        const float expected = replayed(steps, i);
        if (const float found = found_at(optimizer, i); !same_bits(found, expected))
            refuse(i, found, steps.size(), expected);
    }
    return samples;
}

std::uint64_t verify_blocks(const StepBenchOptions& options, const Steps& steps,
                            offload::TensorOptimizer& optimizer) {
    constexpr std::uint64_t most_samples = 20;
    constexpr std::uint64_t block = cpu_optim::block_elements;
    const auto blocks = (options.elements + block - 1) / block;
    const auto samples = std::min(most_samples, blocks);
    std::uint64_t verified = 0;
    for (std::uint64_t n = 0; n < samples; ++n) {
        const auto first = n * blocks / samples * block;
        const auto count = static_cast<std::size_t>(std::min(block, options.elements - first));
        LossyBlock expected(first, count);
        for (std::size_t step = 0; step < steps.size(); ++step)
            expected.update(steps[step], options.state, step + 1);
        for (std::size_t i = 0; i < count; ++i) {
            const float found = found_at(optimizer, first + i);
            if (!same_bits(found, expected.master(i)))
                refuse(first + i, found, steps.size(), expected.master(i));
        }
        verified += count;
    }
    return verified;
}

}  // namespace

StepBenchModel::StepBenchModel(std::uint64_t elements)
    : elements_(elements),
      gradient_elements_(std::min(elements, bench_gradient_tensors * bench_tensor_elements)),
      arena_(2 * static_cast<std::size_t>(elements_ + gradient_elements_)) {
    for (std::uint64_t i = 0; i < elements_; ++i)
        weights()[i] = first_weight(i);
    for (std::uint64_t i = 0; i < gradient_elements_; ++i)
        gradients()[i] = gradient_of(i);
}

std::vector<offload::Parameter> StepBenchModel::parameters() const {
    std::vector<offload::Parameter> all;
    for (std::uint64_t first = 0; first < elements_; first += bench_tensor_elements)
        all.push_back({.name = fmt::format("tensor {}", all.size()),
                       .shape = {std::min(bench_tensor_elements, elements_ - first)},
                       .type = offload::ParameterType::bf16,
                       .data = weights() + first});
    return all;
}

offload::Gradient StepBenchModel::gradient(offload::TensorId tensor) const {
    return {gradients() + tensor % bench_gradient_tensors * bench_tensor_elements,
            cpu_optim::GradientType::bf16};
}

std::uint64_t verify_step_bench(const StepBenchOptions& options,
                                offload::TensorOptimizer& optimizer, std::uint64_t updates) {
    Steps steps;
    for (std::uint64_t step = 1; step <= updates; ++step)
        steps.push_back(cpu_optim::make_coefficients(options.hyper, step, 1.0));
    return options.state == cpu_optim::StateFormat::fp32
               ? verify_elements(options.elements, steps, optimizer)
               : verify_blocks(options, steps, optimizer);
}

}  // namespace spillway::engine
