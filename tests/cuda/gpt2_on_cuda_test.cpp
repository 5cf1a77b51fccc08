// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// A model's passes by the CUDA device's own kernels, on the look-alike of its driver: the real
// sources of the kernels, queued through the real device, against the double-precision reference
// that the processor's kernels are held to.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/driver.h"
#include "cuda/trainer_kernels.h"
#include "engine/model/gpt2_step.h"
#include "engine/model/static_parameter_stream.h"
#include "tests/cuda/standin_device.h"
#include "tests/engine/compute/compute_support.h"
#include "tests/engine/model/gpt2_reference.h"
#include "tests/engine/model/partial_gradients.h"

namespace spillway::engine {
namespace {

using testing::random_tokens;

/// No block size divides anything of it.
Gpt2Config odd_model() {
    Gpt2Config config;
    config.layers = 2;
    config.hidden = 40;
    config.heads = 5;
    config.vocabulary = 90;
    config.context = 40;
    config.feed_forward = 72;
    return config;
}

std::vector<std::vector<float>> random_weights(const Gpt2Config& config) {
    std::vector<std::vector<float>> weights;
    for (const auto& spec : gpt2_tensors(config)) {
        const bool norm_weight =
            spec.shape.size() == 1 && spec.name.find(".weight") != std::string::npos;
        auto values = testing::random_floats(spec.elements(), 11 + unsigned(weights.size()), 0.1F);
        if (norm_weight)
            for (float& value : values)
                value += 1.0F;
        weights.push_back(std::move(values));
    }
    return weights;
}

testing::Gpt2Reference reference_of(const Gpt2Config& config) {
    return testing::reference_of(config, random_weights(config));
}

struct Result {
    double loss = 0;
    std::vector<std::vector<float>> gradients;
};

/// Everything a pass needs on one device. After each pass the look-alike has seen no fault.
class Machine {
  public:
    Machine(const Gpt2Config& config, const BatchShape& shape, std::unique_ptr<cuda::Device> device)
        : config_(config),
          device_(std::move(device)),
          stream_(device_->create_stream("compute")),
          pool_(1, cpu_optim::best_isa()),
          parameters_(*device_, *stream_, config, StaticParameterStream::Blocks::separate),
          step_(*device_, *stream_, pool_, config, shape) {
        const auto weights = random_weights(config);
        for (offload::TensorId i = 0; i < weights.size(); ++i)
            parameters_.write_weights(i, weights[i]);
    }

    Result train(std::span<const std::int32_t> tokens) {
        Result result;
        result.loss = step_.train(parameters_, tokens);
        for (const auto& spec : gpt2_tensors(config_)) {
            result.gradients.emplace_back(spec.elements());
            parameters_.read_gradient(static_cast<offload::TensorId>(result.gradients.size() - 1),
                                      result.gradients.back());
        }
        return result;
    }
    Gpt2Step& step() { return step_; }
    StaticParameterStream& parameters() { return parameters_; }
    cuda::Device& device() { return *device_; }

  private:
    Gpt2Config config_;
    std::unique_ptr<cuda::Device> device_;
    std::unique_ptr<cuda::Stream> stream_;
    ComputePool pool_;
    StaticParameterStream parameters_;
    Gpt2Step step_;
};

constexpr std::size_t capacity = std::size_t{64} << 20;

std::unique_ptr<cuda::Device> gpu() {
    return cuda::make_gpu_test_device(capacity);
}

void check_clean() {
    for (const auto& violation : standin::violations())
        FAIL_CHECK(violation);
}

void check_same(const Result& found, const Result& expected, const Gpt2Config& config) {
    CHECK(std::bit_cast<std::uint64_t>(found.loss) == std::bit_cast<std::uint64_t>(expected.loss));
    const auto specs = gpt2_tensors(config);
    for (std::size_t i = 0; i < specs.size(); ++i) {
        INFO(specs[i].name);
        CHECK(testing::same_bits(found.gradients[i], expected.gradients[i]));
    }
}

/// As for the processor: fp32 sums of a few hundred terms, a few products deep.
constexpr double gradient_tolerance = 64 * std::numeric_limits<float>::epsilon();

void check_close(const Result& found, const testing::Gpt2Reference::Pass& expected,
                 const Gpt2Config& config) {
    CHECK(found.loss == Approx(expected.loss).epsilon(1e-6));
    const auto specs = gpt2_tensors(config);
    for (std::size_t tensor = 0; tensor < specs.size(); ++tensor) {
        double scale = 0;
        double worst = 0;
        for (std::size_t i = 0; i < found.gradients[tensor].size(); ++i) {
            const double exact = expected.gradients[tensor][i];
            scale = std::max(scale, std::abs(exact));
            worst =
                std::max(worst, std::abs(static_cast<double>(found.gradients[tensor][i]) - exact));
        }
        INFO(specs[tensor].name << ": off by " << worst << " of " << scale);
        CHECK(worst <= gradient_tolerance * scale);
    }
}

}  // namespace

TEST_CASE("loss and every gradient of a GPT-2 by CUDA kernels follow the reference", "[gpu]") {
    const Gpt2Config config = odd_model();
    const std::uint32_t sequence_tokens = GENERATE(33u, 7u);
    const std::uint32_t sequences = 2;
    const auto tokens = random_tokens(config, sequences * (sequence_tokens + 1));
    Machine machine(config, {sequences, sequence_tokens, 1, Recompute::cheap_parts}, gpu());
    const auto found = machine.train(tokens);
    check_close(found, reference_of(config).train(tokens, sequences), config);
    CHECK(machine.device().statistics().kernel_busy_s > 0);
    CHECK(machine.step().times().forward_s > 0);
    CHECK(machine.step().times().backward_s > 0);
    CHECK(machine.step().evaluate(machine.parameters(), tokens) == found.loss);
    check_clean();

    Machine on_host(config, {sequences, sequence_tokens, 1, Recompute::cheap_parts},
                    cuda::make_device("cpu", std::size_t{1} << 30));
    CHECK(found.loss == Approx(on_host.train(tokens).loss).epsilon(2e-6));
}

TEST_CASE("micro-batches and recomputation change no bit of what CUDA kernels compute", "[gpu]") {
    const Gpt2Config config = odd_model();
    constexpr std::uint32_t sequence_tokens = 19;
    const auto tokens = random_tokens(config, 4 * (sequence_tokens + std::size_t{1}));
    const auto machine = [&](std::uint32_t micro_batches, Recompute recompute) {
        return Machine(config, {4, sequence_tokens, micro_batches, recompute}, gpu());
    };
    Result expected;
    {
        auto whole = machine(1, Recompute::cheap_parts);
        expected = whole.train(tokens);
        check_same(whole.train(tokens), expected, config);
        check_clean();
    }
    check_same(machine(2, Recompute::cheap_parts).train(tokens), expected, config);
    check_clean();
    check_same(machine(4, Recompute::full).train(tokens), expected, config);
    check_clean();
}

TEST_CASE("CUDA kernels go on with the sums of a step's earlier sequences, bit for bit", "[gpu]") {
    const auto device = gpu();
    testing::check_step_in_parts(odd_model(), 19, *device);
    check_clean();
}

TEST_CASE("logits behind a prompt by CUDA kernels follow the reference", "[gpu][quick]") {
    const Gpt2Config config = odd_model();
    const auto tokens = random_tokens(config, 21);
    Machine machine(config, {1, config.context, 1, Recompute::full}, gpu());
    std::vector<float> logits(config.vocabulary);
    machine.step().next_token_logits(machine.parameters(), tokens, logits);
    const auto expected = reference_of(config).next_token_logits(tokens);
    double scale = 0;
    double worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        scale = std::max(scale, std::abs(expected[i]));
        worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - expected[i]));
    }
    CHECK(worst <= gradient_tolerance * scale);
    check_clean();
}

TEST_CASE("a failure of the device in the middle of a pass comes out of it, and no result does") {
    const Gpt2Config config = odd_model();
    const auto tokens = random_tokens(config, 2 * 10);
    Machine machine(config, {2, 9, 1, Recompute::cheap_parts}, gpu());
    standin::fail_in_stream("spillway_attention", 2, cuda::driver::illegal_address);
    CHECK_THROWS_WITH(machine.step().train(machine.parameters(), tokens),
                      Catch::Contains("CUDA_ERROR_ILLEGAL_ADDRESS"));
    CHECK_THROWS_AS(machine.step().train(machine.parameters(), tokens), cuda::DriverError);
}

TEST_CASE("sequences longer than a kernel's memory are refused by name") {
    const auto device = gpu();
    const auto stream = device->create_stream("long");
    cuda::Attention attention{};
    attention.shape = {.sequences = 1, .sequence_tokens = 6145, .heads = 1, .head_size = 8};
    CHECK_THROWS_WITH(cuda::enqueue(*stream->kernels(), attention),
                      Catch::Contains("6145") && Catch::Contains("6144"));
}

}  // namespace spillway::engine
