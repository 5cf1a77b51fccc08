// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "engine/model/static_parameter_stream.h"
#include "tests/engine/compute/compute_support.h"
#include "tests/engine/model/gpt2_reference.h"
#include "tests/engine/model/partial_gradients.h"

namespace spillway::engine {
namespace {

using cpu_optim::Isa;
using testing::random_tokens;
using testing::same_bits;

/// A shape that no block size divides, with heads of 8 and a feed-forward width that is not 4 x
/// hidden.
Gpt2Config odd_model() {
    Gpt2Config config;
    config.layers = 2;
    config.hidden = 40;
    config.heads = 5;
    config.vocabulary = 300;
    config.context = 280;
    config.feed_forward = 72;
    return config;
}

/// Weights away from the initial values' symmetries: biases that are not 0, norms that are not 1.
std::vector<std::vector<float>> random_weights(const Gpt2Config& config) {
    std::mt19937 random(11);
    std::vector<std::vector<float>> weights;
    for (const auto& spec : gpt2_tensors(config)) {
        const bool norm_weight =
            spec.shape.size() == 1 && spec.name.find(".weight") != std::string::npos;
        std::normal_distribution<float> normal(norm_weight ? 1.0f : 0.0f, 0.1f);
        weights.emplace_back(spec.elements());
        for (float& value : weights.back())
            value = normal(random);
    }
    return weights;
}

testing::Gpt2Reference reference_of(const Gpt2Config& config) {
    return testing::reference_of(config, random_weights(config));
}

/// Notes what is asked of the stream behind it and whether the rules of holding are kept.
class RecordingStream final : public ParameterStream {
  public:
    explicit RecordingStream(ParameterStream& inner) : inner_(inner) {}

    const float* acquire_weights(std::size_t unit) override {
        acquired.push_back(unit);
        held.push_back(unit);
        most_held = std::max(most_held, held.size());
        return inner_.acquire_weights(unit);
    }
    void release_weights(std::size_t unit) override {
        const auto found = std::find(held.begin(), held.end(), unit);
        REQUIRE(found != held.end());
        held.erase(found);
        inner_.release_weights(unit);
    }
    float* acquire_gradient(std::size_t unit) override {
        REQUIRE(gradients_held++ == 0);
        return inner_.acquire_gradient(unit);
    }
    void release_gradient(std::size_t unit) override {
        --gradients_held;
        gradients.push_back(unit);
        inner_.release_gradient(unit);
    }

    std::vector<std::size_t> acquired, gradients, held;
    std::size_t most_held = 0;
    int gradients_held = 0;

  private:
    ParameterStream& inner_;
};

/// Keeps inputs at once, and spoils what whoever relies on them too early or too late would read.
class StrictStore final : public offload::ActivationStore {
  public:
    StrictStore(cuda::Stream& compute, std::size_t input_bytes)
        : compute_(compute), input_bytes_(input_bytes) {}

    void save(std::size_t layer, std::size_t micro_batch, const std::byte* at) override {
        auto& kept = kept_[{layer, micro_batch}];
        REQUIRE(kept.empty());
        kept.resize(input_bytes_);
        compute_.copy_to_host(kept.data(), at, input_bytes_);
        places_[{layer, micro_batch}] = const_cast<std::byte*>(at);
    }
    void wait_saved(std::size_t layer, std::size_t micro_batch) override {
        REQUIRE(!kept_[{layer, micro_batch}].empty());
        spoil(places_[{layer, micro_batch}]);
    }
    void fetch(std::size_t layer, std::size_t micro_batch, std::byte* to) override {
        REQUIRE(to == places_[{layer, micro_batch}]);
        spoil(to);
        fetched_.insert({layer, micro_batch});
    }
    void wait_fetched(std::size_t layer, std::size_t micro_batch) override {
        REQUIRE(fetched_.erase({layer, micro_batch}) == 1);
        auto& kept = kept_[{layer, micro_batch}];
        compute_.copy_to_device(places_[{layer, micro_batch}], kept.data(), input_bytes_);
        compute_.synchronize();
        kept.clear();
        ++moved;
    }
    void close() noexcept override {}

    [[nodiscard]] bool is_empty() const {
        return std::ranges::all_of(kept_, [](const auto& one) { return one.second.empty(); });
    }
    std::size_t moved = 0;

  private:
    void spoil(std::byte* place) {
        compute_.launch("spoil", [=, this] { std::memset(place, 0xFF, input_bytes_); });
    }
    using Input = std::pair<std::size_t, std::size_t>;
    cuda::Stream& compute_;
    std::size_t input_bytes_;
    std::map<Input, std::vector<std::byte>> kept_;
    std::map<Input, std::byte*> places_;
    std::set<Input> fetched_;
};

/// Everything a pass needs, on one device.
class Machine {
  public:
    struct Settings {
        std::string device = "cpu";
        std::size_t threads = 2;
        Isa isa = cpu_optim::best_isa();
    };

    Machine(const Gpt2Config& config, const BatchShape& shape, const Settings& settings)
        : config_(config),
          device_(cuda::make_device(settings.device, std::size_t{1} << 30)),
          stream_(device_->create_stream("compute")),
          pool_(settings.threads, settings.isa),
          parameters_(*device_, *stream_, config, StaticParameterStream::Blocks::separate),
          inputs_(*stream_, std::size_t{shape.sequences} / shape.micro_batches *
                                shape.sequence_tokens * config.hidden * sizeof(float)),
          step_(*device_, *stream_, pool_, config, shape, {},
                shape.lost_inputs == LostInputs::moved ? &inputs_ : nullptr) {
        const auto weights = random_weights(config);
        for (offload::TensorId i = 0; i < weights.size(); ++i)
            parameters_.write_weights(i, weights[i]);
    }

    struct Result {
        double loss = 0;
        std::vector<std::vector<float>> gradients;
    };
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
    [[nodiscard]] const StrictStore& inputs() const { return inputs_; }
    cuda::Device& device() { return *device_; }

  private:
    Gpt2Config config_;
    std::unique_ptr<cuda::Device> device_;
    std::unique_ptr<cuda::Stream> stream_;
    ComputePool pool_;
    StaticParameterStream parameters_;
    StrictStore inputs_;
    Gpt2Step step_;
};

void require_same(const Machine::Result& found, const Machine::Result& expected,
                  const Gpt2Config& config) {
    CHECK(std::bit_cast<std::uint64_t>(found.loss) == std::bit_cast<std::uint64_t>(expected.loss));
    const auto specs = gpt2_tensors(config);
    for (std::size_t i = 0; i < specs.size(); ++i) {
        INFO(specs[i].name);
        CHECK(same_bits(found.gradients[i], expected.gradients[i]));
    }
}

double largest(const testing::Doubles& values) {
    double result = 0;
    for (const double value : values)
        result = std::max(result, std::abs(value));
    return result;
}

/// fp32 sums of a few hundred terms, a few products deep: some tens of roundings of the largest
/// term.
constexpr double gradient_tolerance = 64 * std::numeric_limits<float>::epsilon();

void require_close(const Machine::Result& found, const testing::Gpt2Reference::Pass& expected,
                   const Gpt2Config& config) {
    CHECK(found.loss == Approx(expected.loss).epsilon(1e-6));
    const auto specs = gpt2_tensors(config);
    for (std::size_t tensor = 0; tensor < specs.size(); ++tensor) {
        const double scale = largest(expected.gradients[tensor]);
        double worst = 0;
        for (std::size_t i = 0; i < found.gradients[tensor].size(); ++i)
            worst = std::max(worst, std::abs(static_cast<double>(found.gradients[tensor][i]) -
                                             expected.gradients[tensor][i]));
        INFO(specs[tensor].name << ": off by " << worst << " of " << scale);
        CHECK(scale > 0);
        CHECK(worst <= gradient_tolerance * scale);
    }
}

}  // namespace

TEST_CASE("gpt2_step: the double-precision reference agrees with its own finite differences") {
    Gpt2Config config = odd_model();
    config.hidden = 16;
    config.heads = 2;
    config.vocabulary = 20;
    config.context = 12;
    config.feed_forward = 24;
    auto reference = reference_of(config);
    const auto tokens = random_tokens(config, 2 * 10);
    const auto pass = reference.train(tokens, 2);
    CHECK(pass.loss == Approx(reference.loss(tokens, 2)));
    const auto specs = gpt2_tensors(config);
    for (std::size_t tensor = 0; tensor < specs.size(); ++tensor)
        for (std::size_t i = 0; i < specs[tensor].elements();
             i += 1 + specs[tensor].elements() / 7) {
            constexpr double step = 1e-5;
            double& value = reference.tensor(tensor)[i];
            const double kept = value;
            value = kept + step;
            const double above = reference.loss(tokens, 2);
            value = kept - step;
            const double below = reference.loss(tokens, 2);
            value = kept;
            INFO(specs[tensor].name << " element " << i);
            CHECK(pass.gradients[tensor][i] ==
                  Approx((above - below) / (2 * step)).epsilon(1e-5).margin(1e-9));
        }
}

TEST_CASE("gpt2_step: loss and every gradient follow the double-precision reference") {
    const Gpt2Config config = odd_model();
    // 70: ragged in attention's blocks; 262: ragged in token blocks as well.
    for (const std::uint32_t sequence_tokens : {1u, 70u, 262u}) {
        INFO("sequences of " << sequence_tokens);
        const std::uint32_t sequences = 2;
        const auto tokens = random_tokens(config, sequences * (sequence_tokens + 1));
        Machine machine(config, {sequences, sequence_tokens, 1, Recompute::cheap_parts}, {});
        const auto expected = reference_of(config).train(tokens, sequences);
        if (sequence_tokens > 1)
            require_close(machine.train(tokens), expected, config);
        else  // one token attends to itself alone: no gradient reaches queries and keys
            CHECK(machine.train(tokens).loss == Approx(expected.loss).epsilon(1e-6));
        CHECK(machine.step().times().forward_s > 0);
        CHECK(machine.step().times().backward_s > 0);
    }
}

TEST_CASE(
    "gpt2_step: micro-batches, recomputation, threads, instruction set and device change no bit") {
    const Gpt2Config config = odd_model();
    for (const std::uint32_t sequence_tokens : {70u, 262u}) {
        INFO("sequences of " << sequence_tokens);
        const auto tokens = random_tokens(config, 4 * (sequence_tokens + std::size_t{1}));
        const auto run = [&](std::uint32_t micro_batches, Recompute recompute,
                             const Machine::Settings& settings) {
            Machine machine(config, {4, sequence_tokens, micro_batches, recompute}, settings);
            return machine.train(tokens);
        };
        const auto expected = run(1, Recompute::cheap_parts, {"cpu", 1, cpu_optim::best_isa()});
        for (const std::uint32_t micro_batches : {1u, 2u, 4u})
            for (const auto recompute : {Recompute::cheap_parts, Recompute::full}) {
                INFO(micro_batches << " micro-batches, full recomputation "
                                   << (recompute == Recompute::full));
                require_same(run(micro_batches, recompute, {}), expected, config);
            }
        for (const Isa isa : cpu_optim::supported_isas()) {
            INFO("instruction set " << cpu_optim::isa_name(isa));
            require_same(run(2, Recompute::cheap_parts, {"cpu", 2, isa}), expected, config);
        }
        INFO("simulated device");
        require_same(run(2, Recompute::full, {"sim:64MiB@8GB/s", 2, cpu_optim::best_isa()}),
                     expected, config);
        require_same(run(1, Recompute::cheap_parts, {"sim:64MiB", 1, cpu_optim::best_isa()}),
                     expected, config);
    }
}

TEST_CASE("gpt2_step: inputs that leave the device and come back change no bit") {
    Gpt2Config config = odd_model();
    config.layers = 5;
    const auto tokens = random_tokens(config, 4 * 41);
    const auto expected = Machine(config, {4, 40, 1, Recompute::cheap_parts}, {}).train(tokens);
    for (const std::uint32_t places : {2u, 3u, 4u, 5u})
        for (const std::uint32_t micro_batches : {1u, 2u, 4u})
            for (const auto* const device : {"cpu", "sim:64MiB"}) {
                const auto recompute = places % 2 == 0 ? Recompute::full : Recompute::cheap_parts;
                CAPTURE(places, micro_batches, device);
                Machine machine(config, {4, 40, micro_batches, recompute, 0, places},
                                {device, 2, cpu_optim::best_isa()});
                for (std::size_t step = 1; step <= 2; ++step) {
                    require_same(machine.train(tokens), expected, config);
                    CHECK(machine.inputs().moved == step * (5 - places) * micro_batches);
                    CHECK(machine.inputs().is_empty());
                    CHECK(machine.step().evaluate(machine.parameters(), tokens) == expected.loss);
                }
            }
}

TEST_CASE("gpt2_step: inputs that are made again change no bit, and weights come as announced") {
    Gpt2Config config = odd_model();
    config.layers = 7;
    const auto tokens = random_tokens(config, 4 * 41);
    const auto expected = Machine(config, {4, 40, 1, Recompute::cheap_parts}, {}).train(tokens);
    for (const std::uint32_t places : {5u, 6u})
        for (const auto recompute : {Recompute::cheap_parts, Recompute::full}) {
            CAPTURE(places, recompute == Recompute::full);
            const BatchShape shape{4, 40, 2, recompute, 0, places, LostInputs::made_again};
            Machine machine(config, shape, {"sim:64MiB", 2, cpu_optim::best_isa()});
            require_same(machine.train(tokens), expected, config);
            CHECK(machine.inputs().moved == 0);
            RecordingStream training(machine.parameters());
            machine.step().train(training, tokens);
            const LayerInputPlaces of_shape(7, places, LostInputs::made_again);
            CHECK(training.acquired == gpt2_training_uses(config, of_shape.leaving()));
        }
}

TEST_CASE("gpt2_step: inputs that have to leave need somebody to keep them") {
    Gpt2Config config = odd_model();
    config.layers = 3;
    const auto device = cuda::make_device("cpu", std::size_t{1} << 30);
    const auto stream = device->create_stream("compute");
    ComputePool pool(1, cpu_optim::best_isa());
    const BatchShape shape{1, 8, 1, Recompute::full, 0, 2};
    CHECK_THROWS_AS(Gpt2Step(*device, *stream, pool, config, shape), std::invalid_argument);
    auto all = shape;
    all.input_places = 0;
    CHECK(Gpt2Step::device_bytes(config, shape, 1) < Gpt2Step::device_bytes(config, all, 1));
}

TEST_CASE(
    "gpt2_step: a step in parts that go on with each other's sums has the bits of the whole") {
    const auto device = cuda::make_device("cpu", std::size_t{1} << 30);
    testing::check_step_in_parts(odd_model(), 270, *device);  // more than a token block
}

TEST_CASE("gpt2_step: cutting the logits of a large vocabulary changes no bit") {
    Gpt2Config config = odd_model();
    config.layers = 1;
    config.vocabulary = 20000;  // 262 x 20000 x 4 bytes: two sequences no longer fit 32 MiB
    const auto tokens = random_tokens(config, 2 * 263);
    const auto run = [&](std::uint32_t micro_batches) {
        Machine machine(config, {2, 262, micro_batches, Recompute::cheap_parts}, {});
        return machine.train(tokens);
    };
    require_same(run(1), run(2), config);
    config.vocabulary = 40000;  // not even one: the logits of a token block at a time
    const auto result = run(1);
    require_same(run(2), result, config);
    require_close(result, reference_of(config).train(tokens, 2), config);
}

TEST_CASE("gpt2_step: units are acquired as announced and held no longer than needed") {
    const Gpt2Config config = odd_model();
    const auto tokens = random_tokens(config, 2 * 31);
    Machine machine(config, {2, 30, 2, Recompute::full}, {});
    RecordingStream training(machine.parameters());
    machine.step().train(training, tokens);
    CHECK(training.acquired == gpt2_training_uses(config));
    CHECK(training.gradients == std::vector<std::size_t>{0, 4, 3, 2, 1, 0});
    CHECK(training.held.empty());
    CHECK(training.most_held == 2);
    RecordingStream evaluation(machine.parameters());
    machine.step().evaluate(evaluation, tokens);
    CHECK(evaluation.acquired == gpt2_evaluation_uses(config));
    CHECK(evaluation.gradients.empty());
    CHECK(evaluation.held.empty());
}

TEST_CASE("gpt2_step: evaluation gives the training loss to the bit") {
    const Gpt2Config config = odd_model();
    const auto tokens = random_tokens(config, 4 * 71);
    for (const auto recompute : {Recompute::cheap_parts, Recompute::full}) {
        Machine machine(config, {4, 70, 2, recompute}, {});
        const double trained = machine.train(tokens).loss;
        CHECK(machine.step().evaluate(machine.parameters(), tokens) == trained);
    }
}

TEST_CASE("gpt2_step: logits of the next token follow the reference for every length") {
    const Gpt2Config config = odd_model();
    const auto reference = reference_of(config);
    const auto tokens = random_tokens(config, 262);
    Machine machine(config, {2, 262, 2, Recompute::full}, {"sim:64MiB", 2, cpu_optim::best_isa()});
    for (const std::size_t length : {1u, 2u, 63u, 64u, 65u, 262u}) {
        INFO(length << " tokens");
        const auto prefix = std::span(tokens).first(length);
        std::vector<float> logits(config.vocabulary);
        machine.step().next_token_logits(machine.parameters(), prefix, logits);
        const auto expected = reference.next_token_logits(prefix);
        for (std::size_t i = 0; i < logits.size(); ++i)
            CHECK(std::abs(static_cast<double>(logits[i]) - expected[i]) <
                  gradient_tolerance * largest(expected));
    }
}

TEST_CASE("gpt2_step: it allocates exactly what it says, once") {
    const Gpt2Config config = odd_model();
    const auto device = cuda::make_device("sim:64MiB", 0);
    const auto stream = device->create_stream("compute");
    ComputePool pool(2, cpu_optim::best_isa());
    StaticParameterStream parameters(*device, *stream, config,
                                     StaticParameterStream::Blocks::separate);
    for (const auto recompute : {Recompute::cheap_parts, Recompute::full})
        for (const std::uint32_t micro_batches : {1u, 4u}) {
            const BatchShape shape{4, 70, micro_batches, recompute};
            const std::size_t before = device->free_bytes();
            Gpt2Step step(*device, *stream, pool, config, shape);
            const std::size_t taken = before - device->free_bytes();
            CHECK(taken == Gpt2Step::device_bytes(config, shape, pool.threads()));
            step.train(parameters, random_tokens(config, 4 * 71));
            CHECK(before - device->free_bytes() == taken);
        }
    CHECK(Gpt2Step::device_bytes(config, {4, 70, 4, Recompute::full}, 2) <
          Gpt2Step::device_bytes(config, {4, 70, 1, Recompute::cheap_parts}, 2));
}

TEST_CASE("gpt2_step: a weight that is not finite reaches the loss") {
    const Gpt2Config config = odd_model();
    const auto tokens = random_tokens(config, 2 * 31);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Machine machine(config, {2, 30, 1, Recompute::cheap_parts}, {});
        auto weights = random_weights(config)[4];
        weights[5] = bad;
        machine.parameters().write_weights(4, weights);
        CHECK(std::isnan(machine.train(tokens).loss));
    }
}

TEST_CASE("gpt2_step: impossible shapes and tokens are refused by name") {
    using Catch::Matchers::Contains;
    const Gpt2Config config = odd_model();
    const auto bytes = [&](const BatchShape& shape) {
        return Gpt2Step::device_bytes(config, shape, 1);
    };
    CHECK_THROWS_WITH(bytes({4, 30, 3, Recompute::full}), Contains("3 equal micro-batches"));
    CHECK_THROWS_WITH(bytes({4, 281, 1, Recompute::full}), Contains("280"));
    CHECK_THROWS_WITH(bytes({0, 30, 1, Recompute::full}), Contains("at least 1"));
    CHECK_THROWS_WITH(bytes({4, 30, 0, Recompute::full}), Contains("at least 1"));
    Machine machine(config, {2, 30, 1, Recompute::full}, {});
    auto tokens = random_tokens(config, 62);
    CHECK_THROWS_WITH(machine.step().train(machine.parameters(), std::span(tokens).first(60)),
                      Contains("60") && Contains("62"));
    tokens[61] = 300;
    CHECK_THROWS_WITH(machine.step().train(machine.parameters(), tokens),
                      Contains("token 61") && Contains("300"));
    tokens[61] = -1;
    CHECK_THROWS_WITH(machine.step().evaluate(machine.parameters(), tokens), Contains("-1"));
    std::vector<float> logits(299);
    CHECK_THROWS_WITH(
        machine.step().next_token_logits(machine.parameters(), std::span(tokens).first(3), logits),
        Contains("299") && Contains("300"));
}

TEST_CASE("gpt2_step: shared blocks take the memory of one") {
    Gpt2Config config = odd_model();
    config.layers = 50;
    const auto bytes = [&](StaticParameterStream::Blocks blocks) {
        return StaticParameterStream::device_bytes(config, blocks);
    };
    CHECK(bytes(StaticParameterStream::Blocks::shared) * 10 <
          bytes(StaticParameterStream::Blocks::separate));
    const auto device = cuda::make_device("cpu", std::size_t{1} << 30);
    const auto stream = device->create_stream("compute");
    ComputePool pool(2, cpu_optim::best_isa());
    StaticParameterStream parameters(*device, *stream, config,
                                     StaticParameterStream::Blocks::shared);
    parameters.initialise(1);
    Gpt2Step step(*device, *stream, pool, config, {1, 30, 1, Recompute::full});
    CHECK(std::isfinite(step.train(parameters, random_tokens(config, 31))));
}

}  // namespace spillway::engine
