// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/bench_adam_tensor.h"

#include <bit>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "cpu_optim/lossy_state.h"
#include "cpu_optim/split_master.h"

namespace spillway::engine {

namespace {

using cpu_optim::GradientType;
using cpu_optim::StateFormat;

static_assert(bench_step_elements == cpu_optim::block_elements);

/// Planes a large power of two apart compete for the same cache sets and DRAM banks, and an update
/// reads and writes them side by side: each is followed by whole pages, of no power of two.
constexpr std::uint64_t plane_gap_bytes = std::uint64_t{5} * 4096;

/// Of each plane, for bench_step_elements elements.
struct StepBytes {
    std::vector<std::uint64_t> weights, state;
    std::uint64_t gradient = 0;
};

StepBytes step_bytes(const AdamBenchOptions& options) {
    const auto of = [](std::uint64_t element_bytes) { return bench_step_elements * element_bytes; };
    StepBytes bytes;
    bytes.weights =
        options.weights == MasterForm::fp32 ? std::vector{of(4)} : std::vector{of(2), of(2)};
    const auto planes = options.hyper.needs().state_planes;
    const auto code_bytes = options.state == StateFormat::fp32   ? of(4)
                            : options.state == StateFormat::bf16 ? of(2)
                                                                 : of(1);
    bytes.state.assign(planes, code_bytes);
    if (options.state == StateFormat::int8)
        bytes.state.insert(bytes.state.end(), planes, 1);
    bytes.gradient = of(cpu_optim::gradient_bytes(options.gradient));
    return bytes;
}

std::uint64_t steps_of(std::uint64_t elements) {
    return (elements + bench_step_elements - 1) / bench_step_elements;
}

std::uint64_t plane_bytes(std::uint64_t elements, std::uint64_t step_bytes) {
    constexpr std::uint64_t page_bytes = 4096;
    return (steps_of(elements) * step_bytes + page_bytes - 1) / page_bytes * page_bytes +
           plane_gap_bytes;
}

/// splitmix64 of a plane's element.
std::uint64_t hash_of(std::uint64_t plane, std::uint64_t element) {
    std::uint64_t z = plane * 0xD1342543DE82EF95u + (element + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/// Sign and mantissa of `bits` with a power from 2^-9 to 2^-2: no value that takes another time.
template <int mantissa_bits, int bias>
std::uint32_t ordinary_bits(std::uint64_t hash, int all_bits) {
    const auto mantissa = static_cast<std::uint32_t>(hash) & ((1u << mantissa_bits) - 1u);
    const auto power = static_cast<std::uint32_t>(bias - 9 + static_cast<int>((hash >> 32) % 8));
    const auto sign = static_cast<std::uint32_t>(hash >> 63);
    return sign << (all_bits - 1) | power << mantissa_bits | mantissa;
}

float first_master(std::uint64_t element) {
    return std::bit_cast<float>(ordinary_bits<23, 127>(hash_of(1, element), 32));
}
std::uint32_t gradient_bits(GradientType type, std::uint64_t element) {
    const auto hash = hash_of(2, element);
    if (type == GradientType::fp32)
        return ordinary_bits<23, 127>(hash, 32);
    return type == GradientType::bf16 ? ordinary_bits<7, 127>(hash, 16)
                                      : ordinary_bits<10, 15>(hash, 16);
}
}  // namespace

AdamBenchTensor::AdamBenchTensor(const AdamBenchOptions& options, std::uint64_t first,
                                 std::uint64_t elements)
    : options_(options),
      first_(first),
      elements_(elements),
      arena_(static_cast<std::size_t>(needed_bytes(options, elements))) {
    auto* next = arena_.bytes().data();
    const auto cut = [&](std::uint64_t bytes) {
        const Plane plane{next, bytes};
        next += plane_bytes(elements, bytes);
        return plane;
    };
    const auto bytes = step_bytes(options);
    for (const auto plane : bytes.state)
        state_.push_back(cut(plane));
    gradient_ = cut(bytes.gradient);
    for (const auto plane : bytes.weights)
        weights_.push_back(cut(plane));
}

std::uint64_t AdamBenchTensor::needed_bytes(const AdamBenchOptions& options,
                                            std::uint64_t elements) {
    const auto bytes = step_bytes(options);
    auto needed = plane_bytes(elements, bytes.gradient);
    for (const auto* const planes : {&bytes.weights, &bytes.state}) {
        for (const auto plane : *planes)
            needed += plane_bytes(elements, plane);
    }
    return needed;
}

double AdamBenchTensor::moved_bytes_per_parameter(const AdamBenchOptions& options) {
    const auto bytes = step_bytes(options);
    auto moved = bytes.gradient;
    for (const auto* const planes : {&bytes.weights, &bytes.state}) {
        for (const auto plane : *planes)
            moved += 2 * plane;
    }
    const auto needs = options.hyper.needs();
    if (needs.passes > 1) {
        moved += bytes.gradient +
                 std::accumulate(bytes.weights.begin(), bytes.weights.end(), std::uint64_t{0});
        // Scales follow all planes: of each plane one.
        for (std::size_t plane = 0; plane < bytes.state.size(); ++plane)
            moved += plane % needs.state_planes < needs.measured_planes ? bytes.state[plane] : 0;
    }
    return static_cast<double>(moved) / static_cast<double>(bench_step_elements);
}

void AdamBenchTensor::fill(std::uint64_t begin, std::uint64_t count) const {
    for (auto i = begin; i < begin + count; ++i)
        fill_element(i);
}

void AdamBenchTensor::fill_element(std::uint64_t i) const {
    const float master = first_master(first_ + i);
    const auto halves = cpu_optim::split(master);
    if (options_.weights == MasterForm::fp32) {
        at<float>(weights_[0], 0)[i] = master;
    } else {
        at<std::uint16_t>(weights_[0], 0)[i] = halves.hi;
        at<std::int16_t>(weights_[1], 0)[i] = halves.lo;
    }
    const auto bits = gradient_bits(options_.gradient, first_ + i);
    if (options_.gradient == GradientType::fp32)
        at<float>(gradient_, 0)[i] = std::bit_cast<float>(bits);
    else
        at<std::uint16_t>(gradient_, 0)[i] = static_cast<std::uint16_t>(bits);
}

/// Weights and gradient of a run of any format of state.
template <class Run>
Run AdamBenchTensor::run_of(std::uint64_t begin, std::uint64_t count) const {
    Run run;
    run.elements = static_cast<std::size_t>(count);
    if (options_.weights == MasterForm::fp32) {
        run.master = at<float>(weights_[0], begin);
    } else {
        run.weight = at<std::uint16_t>(weights_[0], begin);
        run.residue = at<std::int16_t>(weights_[1], begin);
    }
    run.gradient = at<std::byte>(gradient_, begin);
    run.gradient_type = options_.gradient;
    return run;
}

/// use(run) with elements begin .. begin + count, state in its format.
template <class Use>
auto AdamBenchTensor::with_run(std::uint64_t begin, std::uint64_t count, const Use& use) const {
    const auto planes = options_.hyper.needs().state_planes;
    if (options_.state == StateFormat::fp32) {
        auto run = run_of<cpu_optim::ElementwiseRun>(begin, count);
        for (std::size_t plane = 0; plane < planes; ++plane)
            run.state[plane] = at<float>(state_[plane], begin);
        return use(run);
    }
    if (options_.state == StateFormat::bf16) {
        auto run = run_of<cpu_optim::Bf16Run>(begin, count);
        run.first_element = first_ + begin;
        for (std::size_t plane = 0; plane < planes; ++plane)
            run.state[plane] = at<std::uint16_t>(state_[plane], begin);
        return use(run);
    }
    auto run = run_of<cpu_optim::Int8Run>(begin, count);
    run.first_element = first_ + begin;
    for (std::size_t plane = 0; plane < planes; ++plane) {
        run.codes[plane] = at<std::uint8_t>(state_[plane], begin);
        run.scales[plane] = at<std::uint8_t>(state_[planes + plane], begin);
    }
    return use(run);
}

cpu_optim::LayerSums AdamBenchTensor::measure(cpu_optim::Isa isa,
                                              const cpu_optim::LayerwiseCoefficients& coefficients,
                                              std::uint64_t begin, std::uint64_t count) const {
    return with_run(begin, count, [&](const auto& run) {
        return cpu_optim::measure_run(isa, coefficients, run);
    });
}

std::size_t AdamBenchTensor::update(cpu_optim::Isa isa, const UpdateRule& rule, std::uint64_t step,
                                    std::uint64_t begin, std::uint64_t count) const {
    const cpu_optim::RoundingStream stream{.step = step};
    const auto update_by = [&](const auto& known, const auto& run) {
        if constexpr (std::is_same_v<std::decay_t<decltype(run)>, cpu_optim::ElementwiseRun>)
            return cpu_optim::update_run(isa, known, run);
        else
            return cpu_optim::update_run(isa, known, stream, run);
    };
    return with_run(begin, count, [&](const auto& run) {
        return std::visit([&](const auto& known) { return update_by(known, run); }, rule);
    });
}

cpu_optim::GradientScan AdamBenchTensor::scan(cpu_optim::Isa isa, std::uint64_t begin,
                                              std::uint64_t count) const {
    return cpu_optim::scan_gradient(isa, at<std::byte>(gradient_, begin), options_.gradient,
                                    static_cast<std::size_t>(count));
}

bool AdamBenchTensor::agrees_with(const AdamBenchTensor& part) const {
    const auto begin = part.first_ - first_;
    // Behind the last element both hold zeros, or what the last block of codes is filled up with.
    const auto same = [&](const Plane& whole, const Plane& piece) {
        return std::memcmp(at<std::byte>(whole, begin), piece.data,
                           steps_of(part.elements_) * piece.step_bytes) == 0;
    };
    bool all = true;
    for (std::size_t plane = 0; plane < weights_.size(); ++plane)
        all = all && same(weights_[plane], part.weights_[plane]);
    for (std::size_t plane = 0; plane < state_.size(); ++plane)
        all = all && same(state_[plane], part.state_[plane]);
    return all;
}

}  // namespace spillway::engine
