// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/text_generator.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace spillway::engine {

namespace {

constexpr std::uint32_t byte_values = 256;

BatchShape one_sequence(std::uint32_t window) {
    return {.sequences = 1,
            .sequence_tokens = window,
            .micro_batches = 1,
            .recompute = Recompute::full};
}

std::uint64_t largest_tensor_elements(const Gpt2Config& config) {
    std::uint64_t largest = 0;
    for (const auto& tensor : gpt2_tensors(config))
        largest = std::max(largest, tensor.elements());
    return largest;
}

std::vector<std::int32_t> tokens_of(std::string_view prompt, std::uint32_t vocabulary) {
    if (prompt.empty())
        throw std::invalid_argument("the prompt is empty; a model needs something to go on from");
    std::vector<std::int32_t> tokens;
    for (const char c : prompt) {
        const auto token = static_cast<unsigned char>(c);
        if (token >= vocabulary)
            throw std::invalid_argument(
                fmt::format("the prompt holds the byte {}; the model knows only 0 to {}", token,
                            vocabulary - 1));
        tokens.push_back(token);
    }
    return tokens;
}

}  // namespace

std::size_t TextGenerator::needed_bytes(const Gpt2Config& config, std::uint32_t window,
                                        std::size_t threads) {
    return StaticParameterStream::device_bytes(config, StaticParameterStream::Blocks::separate) +
           Gpt2Step::device_bytes(config, one_sequence(window), threads) +
           largest_tensor_elements(config) * sizeof(float);
}

TextGenerator::TextGenerator(cuda::Device& device, ComputePool& pool, const Gpt2Config& config,
                             std::uint32_t window, const ReadTensor& read)
    : config_(config),
      window_(window),
      compute_(device.create_stream("generate")),
      parameters_(device, *compute_, config, StaticParameterStream::Blocks::separate),
      step_(device, *compute_, pool, config, one_sequence(window)) {
    const auto tensors = gpt2_tensors(config);
    std::vector<float> values;
    values.reserve(largest_tensor_elements(config));
    for (offload::TensorId tensor = 0; tensor < tensors.size(); ++tensor) {
        values.resize(tensors[tensor].elements());
        read(tensor, values);
        parameters_.write_weights(tensor, values);
    }
}

void TextGenerator::generate(std::string_view prompt, std::uint64_t count, TokenSampler& sampler,
                             const std::function<void(char)>& emit) {
    auto tokens = tokens_of(prompt, config_.vocabulary);
    std::vector<float> logits(config_.vocabulary);
    // A vocabulary padded beyond bytes has tokens that were never trained.
    const auto bytes = std::min(config_.vocabulary, byte_values);
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto seen = std::min<std::size_t>(tokens.size(), window_);
        step_.next_token_logits(parameters_, std::span(tokens).last(seen), logits);
        const auto token = sampler.draw(std::span(logits).first(bytes));
        tokens.push_back(token);
        emit(static_cast<char>(static_cast<unsigned char>(token)));
    }
}

}  // namespace spillway::engine
