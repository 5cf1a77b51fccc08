// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_step.h"

#include <array>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "engine/compute/compute.h"
#include "engine/model/gpt2_activations.h"
#include "engine/model/gpt2_block.h"
#include "engine/model/gpt2_head.h"
#include "engine/model/gpt2_tensors.h"
#include "engine/model/leaving_inputs.h"
#include "engine/model/pass_host_memory.h"
#include "offload/stream_span.h"

namespace spillway::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t token_table_unit = 0;
constexpr std::size_t position_table_unit = 1;
constexpr std::size_t first_block_unit = 2;

double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

}  // namespace

class Gpt2Step::Impl {
  public:
    Impl(cuda::Device& device, cuda::Stream& compute, ComputePool& pool, const Gpt2Config& config,
         const BatchShape& shape, offload::TraceRow trace, offload::ActivationStore* inputs)
        : config_(resolved_for(config, shape)),
          shape_(shape),
          stream_(compute),
          compute_(make_compute(compute, pool)),
          trace_(trace),
          offsets_(config_),
          buffer_(device.allocate(device_bytes(config, shape, pool.threads()))),
          memory_(config_, shape, pool.threads(), buffer_.data()),
          inputs_(memory_, inputs, config_.layers,
                  shape.sequences / shape.micro_batches * std::size_t{shape.sequence_tokens}),
          host_(device, shape.sequences * (shape.sequence_tokens + std::size_t{1})),
          all_rows_{shape.sequences, shape.sequence_tokens},
          micro_rows_{shape.sequences / shape.micro_batches, shape.sequence_tokens} {
        if (inputs == nullptr && shape.lost_inputs == LostInputs::moved &&
            memory_.input_places().places() < config_.layers)
            throw std::invalid_argument(
                fmt::format("{} places for the inputs of {} layers, and nobody to keep the others",
                            memory_.input_places().places(), config_.layers));
    }
    ~Impl() {
        inputs_.close();
        drain();
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    double train(ParameterStream& parameters, std::span<const std::int32_t> tokens) {
        return finishing([&] {
            upload(tokens, all_rows_);
            mark(0);
            embed_tokens(parameters, all_rows_, memory_.block_input(0, 0));
            over_micro_batches([&](std::size_t token) { inputs_.after_made(0, token); });
            for (std::size_t layer = 0; layer < config_.layers; ++layer)
                block_forward(parameters, layer);
            mark(1);
            head_train(parameters);
            for (std::size_t layer = config_.layers; layer-- > 0;)
                block_backward(parameters, layer);
            embedding_backward(parameters);
            mark(2);
            return mean_loss();
        });
    }

    double evaluate(ParameterStream& parameters, std::span<const std::int32_t> tokens) {
        return finishing([&] {
            upload(tokens, all_rows_);
            mark(0);
            embed_tokens(parameters, all_rows_, memory_.passing_input(0, 0));
            for (std::size_t layer = 0; layer < config_.layers; ++layer)
                block_evaluate(parameters, layer, micro_rows_, shape_.micro_batches);
            head_evaluate(parameters);
            mark(1);
            mark(2);
            return mean_loss();
        });
    }

    void next_token_logits(ParameterStream& parameters, std::span<const std::int32_t> tokens,
                           std::span<float> logits) {
        if (tokens.empty() || tokens.size() > shape_.sequence_tokens)
            throw std::invalid_argument(
                fmt::format("logits after {} tokens were asked for: give 1 to {}", tokens.size(),
                            shape_.sequence_tokens));
        if (logits.size() != config_.vocabulary)
            throw std::invalid_argument(
                fmt::format("room for {} logits was given; the vocabulary has {}", logits.size(),
                            config_.vocabulary));
        finishing([&] {
            const TokenRows rows{1, tokens.size()};
            check_ids(tokens);
            copy_tokens(tokens);
            mark(0);
            embed_tokens(parameters, rows, memory_.passing_input(0, 0));
            for (std::size_t layer = 0; layer < config_.layers; ++layer)
                block_evaluate(parameters, layer, rows, 1);
            head_logits(parameters, rows, logits);
            mark(1);
            mark(2);
            stream_.synchronize();
            return 0.0;
        });
    }

    [[nodiscard]] PassTimes times() const noexcept {
        return {seconds(marks_[0], marks_[1]), seconds(marks_[1], marks_[2])};
    }

  private:
    /// Work in flight uses this object and its memory: nothing may leave before it is done.
    void drain() noexcept {
        try {
            stream_.synchronize();
        } catch (...) {
            // A failure in the stream has been or will be thrown to whoever waits for a result.
        }
    }

    template <typename Pass>
    double finishing(const Pass& pass) {
        try {
            return pass();
        } catch (...) {
            drain();
            throw;
        }
    }

    void check_ids(std::span<const std::int32_t> tokens) const {
        for (std::size_t i = 0; i < tokens.size(); ++i)
            if (tokens[i] < 0 || static_cast<std::uint32_t>(tokens[i]) >= config_.vocabulary)
                throw std::invalid_argument(
                    fmt::format("token {} of the batch is {}; the vocabulary has the ids 0 to {}",
                                i, tokens[i], config_.vocabulary - 1));
    }

    void copy_tokens(std::span<const std::int32_t> tokens) {
        std::memcpy(host_.tokens(), tokens.data(), tokens.size_bytes());
        stream_.copy_to_device(reinterpret_cast<std::byte*>(memory_.tokens()), host_.tokens(),
                               tokens.size_bytes());
    }

    void upload(std::span<const std::int32_t> tokens, const TokenRows& rows) {
        const std::size_t needed = rows.sequences * (rows.sequence_tokens + 1);
        if (tokens.size() != needed)
            throw std::invalid_argument(
                fmt::format("{} tokens were given; {} sequences of {} and a last target need {}",
                            tokens.size(), rows.sequences, rows.sequence_tokens, needed));
        check_ids(tokens);
        copy_tokens(tokens);
    }

    void mark(std::size_t index) {
        stream_.launch("mark", [this, index] { marks_[index] = Clock::now(); });
    }

    /// Recorded one by one, of a block with its number.
    template <typename Kernel>
    void launch(const char* name, Kernel kernel) {
        const offload::StreamSpan span(stream_, trace_, name);
        compute_->enqueue(name, std::move(kernel));
    }
    template <typename Kernel>
    void launch(const char* name, std::size_t block, Kernel kernel) {
        const offload::StreamSpan span(stream_, trace_, name, {.what = "block", .number = block});
        compute_->enqueue(name, std::move(kernel));
    }

    [[nodiscard]] TokenIds token_ids(std::size_t token) const {
        const std::size_t stride = shape_.sequence_tokens + std::size_t{1};
        return {memory_.tokens() + token / shape_.sequence_tokens * stride, stride};
    }

    /// Of the whole step, whose mean the gradients are of.
    [[nodiscard]] std::size_t loss_tokens() const {
        const std::size_t sequences =
            shape_.step_sequences == 0 ? shape_.sequences : shape_.step_sequences;
        return sequences * shape_.sequence_tokens;
    }

    [[nodiscard]] std::size_t final_norm_unit() const { return first_block_unit + config_.layers; }

    [[nodiscard]] BlockCompute block_compute(const TokenRows& rows, std::size_t token) const {
        return {*compute_, config_, rows, memory_.scratch(token)};
    }

    [[nodiscard]] HeadCompute head_compute(const TokenRows& rows, std::size_t token) const {
        return {*compute_, config_, rows, memory_.scratch(token), memory_.logits_rows()};
    }

    void embed_tokens(ParameterStream& parameters, const TokenRows& rows, float* into) {
        const float* table = parameters.acquire_weights(token_table_unit);
        const float* positions = parameters.acquire_weights(position_table_unit);
        launch("embed", [=, this] {
            compute_->embed(rows, token_ids(0), config_.hidden, config_.vocabulary, table,
                            positions, into);
        });
        parameters.release_weights(token_table_unit);
        parameters.release_weights(position_table_unit);
    }

    /// Calls body(first token) for each micro-batch.
    template <typename Body>
    void over_micro_batches(const Body& body) const {
        for (std::size_t i = 0; i < shape_.micro_batches; ++i)
            body(i * micro_rows_.tokens());
    }

    void block_forward(ParameterStream& parameters, std::size_t layer) {
        const std::size_t unit = first_block_unit + layer;
        const auto weights = offsets_.block(parameters.acquire_weights(unit));
        over_micro_batches([&](std::size_t token) {
            inputs_.before_made(layer + 1, token);
            launch("block_forward", layer, [=, this] {
                block_compute(micro_rows_, token)
                    .forward(weights, memory_.block_input(layer, token),
                             memory_.block(layer, token), memory_.block_input(layer + 1, token));
            });
            inputs_.after_made(layer + 1, token);
        });
        parameters.release_weights(unit);
    }

    /// Nothing is kept: two block inputs and one set of activations serve all blocks in turn.
    void block_evaluate(ParameterStream& parameters, std::size_t layer, const TokenRows& rows,
                        std::size_t micro_batches) {
        const std::size_t unit = first_block_unit + layer;
        const auto weights = offsets_.block(parameters.acquire_weights(unit));
        for (std::size_t i = 0; i < micro_batches; ++i) {
            const std::size_t token = i * rows.tokens();
            launch("block_evaluate", layer, [=, this] {
                block_compute(rows, token)
                    .forward(weights, memory_.passing_input(layer, token), memory_.block(0, 0),
                             memory_.passing_input(layer + 1, token));
            });
        }
        parameters.release_weights(unit);
    }

    struct HeadWeights {
        NormTensors<const float> norm;
        const float* table;
    };
    HeadWeights acquire_head(ParameterStream& parameters) {
        const auto norm = offsets_.final_norm(parameters.acquire_weights(final_norm_unit()));
        return {norm, parameters.acquire_weights(token_table_unit)};
    }

    void head_train(ParameterStream& parameters) {
        const HeadWeights weights = acquire_head(parameters);
        float* gradient = parameters.acquire_gradient(token_table_unit);
        const auto first = parameters.first_contribution();
        const auto scale = static_cast<float>(1.0 / static_cast<double>(loss_tokens()));
        over_micro_batches([&](std::size_t token) {
            launch("head", [=, this] {
                head_compute(micro_rows_, token)
                    .train(weights.norm, weights.table, memory_.block_input(config_.layers, token),
                           token_ids(token), scale, token == 0 ? first : Contribution::further,
                           memory_.token_losses() + token, gradient,
                           memory_.residual_gradient(token));
            });
        });
        parameters.release_gradient(token_table_unit);
        parameters.release_weights(token_table_unit);
        final_norm_backward(parameters, weights.norm.weight);
        parameters.release_weights(final_norm_unit());
    }

    void final_norm_backward(ParameterStream& parameters, const float* weight) {
        const auto gradient = offsets_.final_norm(parameters.acquire_gradient(final_norm_unit()));
        const auto contribution = parameters.first_contribution();
        launch("final_norm_backward", [=, this] {
            const float* input = memory_.block_input(config_.layers, 0);
            const RowStatistics* statistics = memory_.scratch(0).statistics;
            float* residual = memory_.residual_gradient(0);
            compute_->layer_norm_parameter_gradients(all_rows_, config_.hidden, input, statistics,
                                                     residual, contribution, gradient.weight,
                                                     gradient.bias);
            compute_->layer_norm_input_gradient(all_rows_.tokens(), config_.hidden, input,
                                                statistics, weight, residual,
                                                InputGradient::replace, residual);
        });
        parameters.release_gradient(final_norm_unit());
    }

    void head_evaluate(ParameterStream& parameters) {
        const HeadWeights weights = acquire_head(parameters);
        over_micro_batches([&](std::size_t token) {
            launch("head_evaluate", [=, this] {
                head_compute(micro_rows_, token)
                    .evaluate(weights.norm, weights.table,
                              memory_.passing_input(config_.layers, token), token_ids(token),
                              memory_.token_losses() + token);
            });
        });
        parameters.release_weights(final_norm_unit());
        parameters.release_weights(token_table_unit);
    }

    void head_logits(ParameterStream& parameters, const TokenRows& rows, std::span<float> logits) {
        const HeadWeights weights = acquire_head(parameters);
        launch("head_logits", [=, this] {
            head_compute(rows, 0).last_logits(weights.norm, weights.table,
                                              memory_.passing_input(config_.layers, 0));
        });
        parameters.release_weights(final_norm_unit());
        parameters.release_weights(token_table_unit);
        stream_.copy_to_host(reinterpret_cast<std::byte*>(logits.data()),
                             reinterpret_cast<const std::byte*>(memory_.scratch(0).logits),
                             logits.size_bytes());
    }

    /// From the input of the block before, which kept its place.
    void make_input_again(ParameterStream& parameters, std::size_t layer) {
        const std::size_t unit = first_block_unit + layer - 1;
        const auto weights = offsets_.block(parameters.acquire_weights(unit));
        over_micro_batches([&](std::size_t token) {
            launch("block_again", layer - 1, [=, this] {
                block_compute(micro_rows_, token)
                    .forward(weights, memory_.block_input(layer - 1, token),
                             memory_.block(layer - 1, token), memory_.block_input(layer, token));
            });
        });
        parameters.release_weights(unit);
    }

    void block_backward(ParameterStream& parameters, std::size_t layer) {
        if (shape_.lost_inputs == LostInputs::made_again && memory_.input_places().leaves(layer))
            make_input_again(parameters, layer);
        const std::size_t unit = first_block_unit + layer;
        const auto weights = offsets_.block(parameters.acquire_weights(unit));
        const auto gradients = offsets_.block(parameters.acquire_gradient(unit));
        const auto first = parameters.first_contribution();
        over_micro_batches([&](std::size_t token) {
            inputs_.before_used(layer, token);
            launch("block_backward", layer, [=, this] {
                const auto block = block_compute(micro_rows_, token);
                const auto kept = memory_.block(layer, token);
                const float* input = memory_.block_input(layer, token);
                if (shape_.recompute == Recompute::full)
                    block.recompute(weights, input, kept);
                block.backward(weights, input, kept, token == 0 ? first : Contribution::further,
                               gradients, memory_.residual_gradient(token));
            });
            inputs_.after_used(layer, token);
        });
        parameters.release_gradient(unit);
        parameters.release_weights(unit);
    }

    void embedding_backward(ParameterStream& parameters) {
        const auto contribution = parameters.first_contribution();
        float* positions = parameters.acquire_gradient(position_table_unit);
        launch("position_table_gradient", [=, this] {
            compute_->position_table_gradient(all_rows_, config_.hidden, config_.context,
                                              memory_.residual_gradient(0), contribution,
                                              positions);
        });
        parameters.release_gradient(position_table_unit);
        float* table = parameters.acquire_gradient(token_table_unit);
        launch("token_table_gradient", [=, this] {
            compute_->token_table_gradient(all_rows_, token_ids(0), config_.hidden,
                                           config_.vocabulary, memory_.residual_gradient(0),
                                           contribution, table);
        });
        parameters.release_gradient(token_table_unit);
    }

    double mean_loss() {
        compute_->enqueue("mean_loss", [this] {
            compute_->mean_loss(memory_.token_losses(), all_rows_.tokens(), memory_.loss());
        });
        stream_.copy_to_host(host_.loss(), reinterpret_cast<const std::byte*>(memory_.loss()),
                             sizeof(double));
        stream_.synchronize();
        double loss = 0;
        std::memcpy(&loss, host_.loss(), sizeof(loss));
        return loss;
    }

    const Gpt2Config config_;
    const BatchShape shape_;
    cuda::Stream& stream_;
    std::unique_ptr<Compute> compute_;
    offload::TraceRow trace_;
    Gpt2Offsets offsets_;
    cuda::DeviceBuffer buffer_;
    Gpt2Activations memory_;  ///< cut from buffer_
    LeavingInputs inputs_;
    PassHostMemory host_;
    TokenRows all_rows_;
    TokenRows micro_rows_;
    std::array<Clock::time_point, 3> marks_{};  ///< written by kernels
};

std::size_t Gpt2Step::device_bytes(const Gpt2Config& config, const BatchShape& shape,
                                   std::size_t threads) {
    return Gpt2Activations(resolved_for(config, shape), shape, threads, nullptr).bytes();
}

Gpt2Step::Gpt2Step(cuda::Device& device, cuda::Stream& compute, ComputePool& pool,
                   const Gpt2Config& config, const BatchShape& shape, offload::TraceRow trace,
                   offload::ActivationStore* inputs)
    : impl_(std::make_unique<Impl>(device, compute, pool, config, shape, trace, inputs)) {}

Gpt2Step::~Gpt2Step() = default;

double Gpt2Step::train(ParameterStream& parameters, std::span<const std::int32_t> tokens) {
    return impl_->train(parameters, tokens);
}

double Gpt2Step::evaluate(ParameterStream& parameters, std::span<const std::int32_t> tokens) {
    return impl_->evaluate(parameters, tokens);
}

void Gpt2Step::next_token_logits(ParameterStream& parameters, std::span<const std::int32_t> tokens,
                                 std::span<float> logits) {
    impl_->next_token_logits(parameters, tokens, logits);
}

PassTimes Gpt2Step::times() const noexcept {
    return impl_->times();
}

}  // namespace spillway::engine
