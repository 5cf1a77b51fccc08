// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_step_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "cpu_optim/elementwise_reference.h"
#include "cpu_optim/float_formats.h"
#include "cpu_optim/layerwise.h"
#include "cpu_optim/lossy_state.h"
#include "cpu_optim/split_master.h"

namespace spillway::engine {
namespace {

using cpu_optim::StateFormat;

constexpr const char* not_measured = "steps of Adafactor are not measured here";

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

/// Elements of one tensor, updated by the scalar kernels. They start on a block.
class ScalarRun {
    /// use(run) with some of the elements; before its callers, which take its type from it.
    template <class Use>
    auto with_run(std::size_t begin, std::size_t elements, const Use& use) {
        const auto with_common = [&](auto run) {
            run.elements = elements;
            run.weight = weights_.data() + begin;
            run.residue = residues_.data() + begin;
            run.gradient = gradients_.data() + begin;
            run.gradient_type = cpu_optim::GradientType::bf16;
            return run;
        };
        const auto first = first_ % bench_tensor_elements + begin;
        if (format_ == StateFormat::fp32) {
            auto run = with_common(cpu_optim::ElementwiseRun{});
            for (std::size_t plane = 0; plane < floats_.size(); ++plane)
                run.state[plane] = floats_[plane].data() + begin;
            return use(run);
        }
        if (format_ == StateFormat::bf16) {
            auto run = with_common(cpu_optim::Bf16Run{});
            run.first_element = first;
            for (std::size_t plane = 0; plane < halves_.size(); ++plane)
                run.state[plane] = halves_[plane].data() + begin;
            return use(run);
        }
        auto run = with_common(cpu_optim::Int8Run{});
        run.first_element = first;
        for (std::size_t plane = 0; plane < codes_.size(); ++plane) {
            run.codes[plane] = codes_[plane].data() + begin;
            run.scales[plane] = scales_[plane].data() + begin / block;
        }
        return use(run);
    }

  public:
    ScalarRun(StateFormat format, std::uint64_t first, std::size_t elements)
        : format_(format),
          first_(first),
          weights_(elements),
          residues_(elements),
          gradients_(elements) {
        for (std::size_t i = 0; i < elements; ++i) {
            weights_[i] = first_weight(first + i);
            gradients_[i] = gradient_of(first + i);
        }
        const auto blocks = (elements + block - 1) / block;
        for (std::size_t plane = 0; plane < cpu_optim::most_lossy_planes; ++plane) {
            floats_[plane].resize(format == StateFormat::fp32 ? elements : 0);
            halves_[plane].resize(format == StateFormat::bf16 ? elements : 0);
            codes_[plane].resize(format == StateFormat::int8 ? blocks * block : 0);
            scales_[plane].resize(format == StateFormat::int8 ? blocks : 0);
        }
    }
    [[nodiscard]] static std::size_t bytes(std::uint64_t elements) {
        return static_cast<std::size_t>(elements) *
               (3 * sizeof(std::uint16_t) + cpu_optim::most_lossy_planes * sizeof(float));
    }

    template <class Rule>
    void update(const Rule& rule, std::uint64_t step) {
        const cpu_optim::RoundingStream stream{.tensor = first_ / bench_tensor_elements,
                                               .step = step};
        with_run(0, weights_.size(), [&](const auto& run) {
            if constexpr (std::is_same_v<std::decay_t<decltype(run)>, cpu_optim::ElementwiseRun>)
                return cpu_optim::update_run(cpu_optim::Isa::scalar, rule, run);
            else
                return cpu_optim::update_run(cpu_optim::Isa::scalar, rule, stream, run);
        });
    }
    /// Pass 1, tile by tile.
    [[nodiscard]] cpu_optim::LayerSums measure(const cpu_optim::LayerwiseCoefficients& rule) {
        cpu_optim::LayerSums sums;
        for (std::size_t begin = 0; begin < weights_.size(); begin += offload::tile_elements)
            sums += with_run(begin, std::min(offload::tile_elements, weights_.size() - begin),
                             [&](const auto& run) {
                                 return cpu_optim::measure_run(cpu_optim::Isa::scalar, rule, run);
                             });
        return sums;
    }
    [[nodiscard]] float master(std::size_t i) const {
        return cpu_optim::join({weights_[i], residues_[i]});
    }

  private:
    static constexpr std::size_t block = cpu_optim::block_elements;

    StateFormat format_;
    std::uint64_t first_;
    std::vector<std::uint16_t> weights_;
    std::vector<std::int16_t> residues_;
    std::vector<std::uint16_t> gradients_;
    std::array<std::vector<float>, cpu_optim::most_lossy_planes> floats_;
    std::array<std::vector<std::uint16_t>, cpu_optim::most_lossy_planes> halves_;
    std::array<std::vector<std::uint8_t>, cpu_optim::most_lossy_planes> codes_;
    std::array<std::vector<std::uint8_t>, cpu_optim::most_lossy_planes> scales_;
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
        ScalarRun expected(options.state, first, count);
        for (std::size_t step = 0; step < steps.size(); ++step)
            expected.update(steps[step], step + 1);
        for (std::size_t i = 0; i < count; ++i) {
            const float found = found_at(optimizer, first + i);
            if (!same_bits(found, expected.master(i)))
                refuse(first + i, found, steps.size(), expected.master(i));
        }
        verified += count;
    }
    return verified;
}

/// The first and the last tensor, whole, since each element's step hangs on all of its tensor.
std::uint64_t verify_tensors(const StepBenchOptions& options,
                             const cpu_optim::LayerwiseHyperParameters& hyper,
                             std::uint64_t updates, offload::TensorOptimizer& optimizer) {
    const auto last = (options.elements - 1) / bench_tensor_elements;
    std::uint64_t verified = 0;
    for (const auto tensor : std::set<std::uint64_t>{0, last}) {
        const auto first = tensor * bench_tensor_elements;
        const auto count =
            static_cast<std::size_t>(std::min(bench_tensor_elements, options.elements - first));
        ScalarRun expected(options.state, first, count);
        for (std::uint64_t step = 1; step <= updates; ++step) {
            const auto rule = cpu_optim::make_coefficients(hyper, step, 1.0);
            const auto length = cpu_optim::layer_step(hyper, expected.measure(rule));
            expected.update(cpu_optim::with_step(rule, length), step);
        }
        std::vector<float> found(std::min(count, std::size_t{offload::tile_elements}));
        for (std::size_t i = 0; i < count; ++i) {
            const auto in_piece = i % found.size();
            if (in_piece == 0)
                optimizer.read_masters(static_cast<offload::TensorId>(tensor), i,
                                       std::span(found).first(std::min(found.size(), count - i)));
            if (!same_bits(found[in_piece], expected.master(i)))
                refuse(first + i, found[in_piece], updates, expected.master(i));
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

std::size_t replay_bytes(const StepBenchOptions& options) {
    return options.hyper.needs().passes == 1
               ? 0
               : ScalarRun::bytes(std::min(options.elements, bench_tensor_elements));
}

std::uint64_t verify_step_bench(const StepBenchOptions& options,
                                offload::TensorOptimizer& optimizer, std::uint64_t updates) {
    return options.hyper.visit([&](const auto& groups) -> std::uint64_t {
        const auto& hyper = groups.front();
        if constexpr (std::is_same_v<decltype(hyper), const cpu_optim::LayerwiseHyperParameters&>) {
            return verify_tensors(options, hyper, updates, optimizer);
        } else if constexpr (std::is_same_v<decltype(hyper),
                                            const cpu_optim::AdafactorHyperParameters&>) {
            throw std::invalid_argument(not_measured);
        } else {
            Steps steps;
            for (std::uint64_t step = 1; step <= updates; ++step)
                steps.push_back(cpu_optim::make_coefficients(hyper, step, 1.0));
            return options.state == StateFormat::fp32
                       ? verify_elements(options.elements, steps, optimizer)
                       : verify_blocks(options, steps, optimizer);
        }
    });
}

}  // namespace spillway::engine
