// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/calibration.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "cuda/host_mapping.h"
#include "engine/model/parameter_stream.h"
#include "offload/element_order.h"

namespace spillway::engine {
namespace {

/// One place for the weights of all units and one for all gradients: the time of a resident model
/// in the memory of its largest unit. The values mean nothing.
class OnePlaceStream final : public ParameterStream {
  public:
    OnePlaceStream(cuda::Device& device, cuda::Stream& compute, const Gpt2Config& config) {
        const offload::ElementOrder order(gpt2_tensors(config));
        std::uint64_t largest = 0;
        for (const auto& unit : gpt2_units(config))
            largest = std::max(largest, offload::unit_range(order, unit).size());
        const auto bytes = static_cast<std::size_t>(largest) * sizeof(float);
        weights_ = device.allocate(bytes);
        gradient_ = device.allocate(bytes);
        fill(device, compute);
    }

    [[nodiscard]] const float* acquire_weights(std::size_t) override {
        return weights_.as<const float>();
    }
    void release_weights(std::size_t) override {}
    [[nodiscard]] float* acquire_gradient(std::size_t) override { return gradient_.as<float>(); }
    void release_gradient(std::size_t) override {}

  private:
    /// Small values of both signs: nothing overflows and nothing is denormal. Over a slow link only
    /// a part of them: the rest is whatever the memory holds.
    void fill(cuda::Device& device, cuda::Stream& compute) const {
        constexpr std::chrono::milliseconds limit(500);
        const auto start = std::chrono::steady_clock::now();
        constexpr std::size_t elements = std::size_t{1} << 16;
        constexpr auto pattern_bytes = elements * sizeof(float);
        const cuda::HostMapping memory(pattern_bytes);
        const auto page_locked = device.register_host(memory.data(), memory.size_bytes());
        auto* const pattern = reinterpret_cast<float*>(memory.data());
        for (std::size_t i = 0; i < elements; ++i)
            pattern[i] = (static_cast<float>((i * 2654435761U) >> 16 & 0xFFU) - 127.5F) * 1e-4F;
        for (std::size_t at = 0; at < weights_.size_bytes(); at += pattern_bytes) {
            compute.copy_to_device(weights_.data() + at, memory.data(),
                                   std::min(pattern_bytes, weights_.size_bytes() - at));
            compute.synchronize();
            if (std::chrono::steady_clock::now() - start > limit)
                break;
        }
    }

    cuda::DeviceBuffer weights_;
    cuda::DeviceBuffer gradient_;
};

/// The best of the passes that fit in `while_s`, at least two: the first meets cold memory, others
/// may meet a busy machine.
PassTimes time_pass(cuda::Device& device, cuda::Stream& compute, ComputePool& pool,
                    const Gpt2Config& config, const BatchShape& shape, double while_s) {
    OnePlaceStream parameters(device, compute, config);
    Gpt2Step step(device, compute, pool, config, shape);
    std::vector<std::int32_t> tokens(std::size_t{shape.sequences} *
                                     (shape.sequence_tokens + std::size_t{1}));
    for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<std::int32_t>(i * 31 % config.vocabulary);
    PassTimes best{.forward_s = std::numeric_limits<double>::infinity(),
                   .backward_s = std::numeric_limits<double>::infinity()};
    double sum = 0;
    for (int pass = 0; pass < 2 || sum < while_s; ++pass) {
        static_cast<void>(step.train(parameters, tokens));
        compute.synchronize();
        const auto times = step.times();
        best.forward_s = std::min(best.forward_s, times.forward_s);
        best.backward_s = std::min(best.backward_s, times.backward_s);
        sum += times.forward_s + times.backward_s;
    }
    return best;
}

/// As many sequences as about a third of a second takes, at least one a thread.
std::uint32_t timed_sequences(const Gpt2Config& config, const BatchShape& shape,
                              std::size_t threads) {
    constexpr double operations_per_s_and_thread = 3e10;
    const double hidden = config.hidden;
    const double weights =
        2 * (4 * hidden * hidden + 2 * hidden * config.feed_forward) + hidden * config.vocabulary;
    const double one_s = 8 * weights * shape.sequence_tokens /
                         (operations_per_s_and_thread * static_cast<double>(threads));
    const auto most = shape.sequences / shape.micro_batches;
    const auto wanted = std::max(0.3 / one_s, static_cast<double>(threads));
    return static_cast<std::uint32_t>(std::clamp(wanted, 1.0, static_cast<double>(most)));
}

}  // namespace

double extrapolate_pass(double one_layer_s, double two_layers_s, std::uint32_t layers,
                        std::uint32_t timed_sequences, std::uint32_t sequences) {
    if (layers == 0 || timed_sequences == 0)
        throw std::invalid_argument("a pass has at least one layer and one sequence");
    const double layer_s = std::max(0.0, two_layers_s - one_layer_s);
    return (one_layer_s + (layers - 1) * layer_s) * sequences / timed_sequences;
}

PassTimes calibrate_pass(cuda::Device& device, cuda::Stream& compute, ComputePool& pool,
                         const Gpt2Config& config, const BatchShape& shape) {
    auto timed = shape;
    // A GPU is timed with as much as it will be given: less would not fill it.
    timed.sequences = compute.kernels() != nullptr ? shape.sequences / shape.micro_batches
                                                   : timed_sequences(config, shape, pool.threads());
    timed.micro_batches = 1;
    const auto time = [&](std::uint32_t layers) {
        auto few = config;
        few.layers = layers;
        return time_pass(device, compute, pool, few, timed, 0.4);
    };
    const auto one = time(1);
    // A run of one layer has no room planned for two.
    const auto two = config.layers > 1 ? time(2) : one;
    const auto whole = [&](double one_s, double two_s) {
        return extrapolate_pass(one_s, two_s, config.layers, timed.sequences, shape.sequences);
    };
    return {.forward_s = whole(one.forward_s, two.forward_s),
            .backward_s = whole(one.backward_s, two.backward_s)};
}

void warm_up(cuda::Device& device, cuda::Stream& compute, ComputePool& pool) {
    Gpt2Config config{.layers = 1, .hidden = 64, .heads = 1, .vocabulary = 256, .context = 32};
    resolve(config);
    const auto sequences = static_cast<std::uint32_t>(pool.threads());
    static_cast<void>(time_pass(device, compute, pool, config,
                                {.sequences = sequences, .sequence_tokens = 32}, 0));
}

}  // namespace spillway::engine
