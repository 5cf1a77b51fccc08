// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_activations.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::engine {
namespace {

constexpr std::size_t alignment_bytes = 256;
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t most_logits_bytes = std::size_t{32} << 20;

std::size_t round_up(std::size_t value, std::size_t step) {
    return (value + step - 1) / step * step;
}

/// Hands out runs of memory one behind the other.
class Carver {
  public:
    explicit Carver(std::byte* base) : base_(base) {}

    template <typename T>
    T* take(std::size_t elements) {
        const std::size_t at = used_bytes_;
        used_bytes_ = round_up(at + elements * sizeof(T), alignment_bytes);
        return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
    }
    [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }

  private:
    std::byte* base_;
    std::size_t used_bytes_ = 0;
};

std::size_t micro_tokens(const BatchShape& shape) {
    return std::size_t{shape.sequences} / shape.micro_batches * shape.sequence_tokens;
}

std::size_t step_tokens(const BatchShape& shape) {
    return std::size_t{shape.sequences} * shape.sequence_tokens;
}

AttentionShape attention_shape(const Gpt2Config& config, const BatchShape& shape) {
    return {{shape.sequences / shape.micro_batches, shape.sequence_tokens},
            config.heads,
            config.head_size()};
}

}  // namespace

Gpt2Config resolved_for(Gpt2Config config, const BatchShape& shape) {
    resolve(config);
    if (shape.sequences == 0 || shape.sequence_tokens == 0 || shape.micro_batches == 0)
        throw std::invalid_argument(fmt::format(
            "a step of {} sequences of {} tokens in {} micro-batches: each must be at least 1",
            shape.sequences, shape.sequence_tokens, shape.micro_batches));
    if (shape.sequences % shape.micro_batches != 0)
        throw std::invalid_argument(
            fmt::format("{} sequences cannot be cut into {} equal micro-batches: choose a divisor",
                        shape.sequences, shape.micro_batches));
    if (shape.sequence_tokens > config.context)
        throw std::invalid_argument(
            fmt::format("sequences of {} tokens are longer than the model's context of {}",
                        shape.sequence_tokens, config.context));
    return config;
}

std::size_t logits_rows(const Gpt2Config& config, const TokenRows& rows) {
    const std::size_t sequence_bytes = rows.sequence_tokens * config.vocabulary * sizeof(float);
    const std::size_t sequences = std::min(rows.sequences, most_logits_bytes / sequence_bytes);
    return sequences > 0 ? sequences * rows.sequence_tokens
                         : std::min(token_block, rows.sequence_tokens);
}

Gpt2Activations::Gpt2Activations(const Gpt2Config& config, const BatchShape& shape,
                                 std::size_t threads, std::byte* base)
    : config_(config),
      shape_(shape),
      places_(config.layers, shape.input_places, shape.lost_inputs) {
    kept_tokens_ = shape.recompute == Recompute::full ? micro_tokens(shape) : step_tokens(shape);
    logits_rows_ = engine::logits_rows(config, attention_shape(config, shape).rows);
    carve(threads, base);
}

void Gpt2Activations::carve(std::size_t threads, std::byte* base) {
    const std::size_t tokens = step_tokens(shape_);
    const std::size_t micro = micro_tokens(shape_);
    const std::size_t hidden = config_.hidden;
    const std::size_t feed_forward = config_.feed_forward;
    const std::size_t kept =
        shape_.recompute == Recompute::full ? kept_tokens_ : config_.layers * kept_tokens_;
    Carver carver(base);
    tokens_ =
        carver.take<std::int32_t>(shape_.sequences * (shape_.sequence_tokens + std::size_t{1}));
    token_losses_ = carver.take<double>(tokens);
    loss_ = carver.take<double>(1);
    block_inputs_ = carver.take<float>((places_.places() + 1) * tokens * hidden);
    residual_gradient_ = carver.take<float>(tokens * hidden);
    kept_.qkv = carver.take<float>(kept * 3 * hidden);
    kept_.attended = carver.take<float>(kept * hidden);
    kept_.softmax = carver.take<SoftmaxStatistics>(kept * config_.heads);
    kept_.middle = carver.take<float>(kept * hidden);
    kept_.up = carver.take<float>(kept * feed_forward);
    scratch_.normal = carver.take<float>(micro * hidden);
    scratch_.narrow = carver.take<float>(micro * hidden);
    const std::size_t wide = micro * std::max(feed_forward, 3 * hidden);
    const std::size_t logits = logits_rows_ * config_.vocabulary;
    scratch_.activated = carver.take<float>(std::max(micro * feed_forward + wide, logits));
    scratch_.wide_gradient = scratch_.activated + (base == nullptr ? 0 : micro * feed_forward);
    scratch_.logits = scratch_.activated;
    // Of a device's own kernels attention_backward takes one float a head and token.
    scratch_.attention = carver.take<float>(
        std::max(attention_scratch_elements(attention_shape(config_, shape_), threads),
                 micro * config_.heads));
    scratch_.statistics = carver.take<RowStatistics>(tokens);
    bytes_ = round_up(carver.used_bytes(), page_bytes);
}

float* Gpt2Activations::block_input(std::size_t layer, std::size_t token) const noexcept {
    const auto place = layer == config_.layers ? places_.places() : places_.place_of(layer);
    return block_inputs_ + (place * step_tokens(shape_) + token) * config_.hidden;
}

float* Gpt2Activations::passing_input(std::size_t layer, std::size_t token) const noexcept {
    return block_input(layer % 2 == 0 ? 0 : config_.layers, token);
}

BlockActivations Gpt2Activations::block(std::size_t layer, std::size_t token) const noexcept {
    const std::size_t at = shape_.recompute == Recompute::full ? 0 : layer * kept_tokens_ + token;
    return {kept_.qkv + at * 3 * config_.hidden, kept_.attended + at * config_.hidden,
            kept_.softmax + at * config_.heads, kept_.middle + at * config_.hidden,
            kept_.up + at * config_.feed_forward};
}

Scratch Gpt2Activations::scratch(std::size_t token) const noexcept {
    Scratch scratch = scratch_;
    scratch.statistics += token;
    return scratch;
}

float* Gpt2Activations::residual_gradient(std::size_t token) const noexcept {
    return residual_gradient_ + token * config_.hidden;
}

}  // namespace spillway::engine
