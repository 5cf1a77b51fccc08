// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <limits>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/interop/huggingface_gpt2.h"

namespace spillway::engine {

namespace {

using nlohmann::json;

constexpr double layer_norm_epsilon = 1e-5;

[[noreturn]] void refuse(const char* key, const std::string& found, std::string_view needed) {
    throw std::runtime_error(
        fmt::format("'{}' is {}; this program computes {} only", key, found, needed));
}

/// A key that is missing or null has Hugging Face's default.
const json* given(const json& root, const char* key) {
    const auto found = root.find(key);
    return found == root.end() || found->is_null() ? nullptr : &*found;
}

std::uint32_t size_of(const json& root, const char* key) {
    const auto* value = given(root, key);
    if (value == nullptr)
        throw std::runtime_error(fmt::format("'{}' is missing", key));
    if (!value->is_number_unsigned() ||
        value->get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max())
        throw std::runtime_error(
            fmt::format("'{}' is {}, not an integer from 0 to 2^32 - 1", key, value->dump()));
    return value->get<std::uint32_t>();
}

void require_text(const json& root, const char* key, std::initializer_list<const char*> accepted) {
    const auto* value = given(root, key);
    if (value == nullptr)
        return;
    for (const char* text : accepted) {
        if (*value == text)
            return;
    }
    refuse(key, value->dump(), *accepted.begin());
}

void require_flag(const json& root, const char* key, bool needed) {
    const auto* value = given(root, key);
    if (value != nullptr && *value != json(needed))
        refuse(key, value->dump(), needed ? "true" : "false");
}

void require_same_arithmetic(const json& root) {
    if (given(root, "model_type") == nullptr)
        throw std::runtime_error("'model_type' is missing");
    require_text(root, "model_type", {"gpt2"});
    // All three names stand for the tanh form of GELU.
    require_text(root, "activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
    require_flag(root, "tie_word_embeddings", true);
    require_flag(root, "scale_attn_weights", true);
    require_flag(root, "scale_attn_by_inverse_layer_idx", false);
    require_flag(root, "add_cross_attention", false);
    const auto* epsilon = given(root, "layer_norm_epsilon");
    if (epsilon != nullptr && *epsilon != json(layer_norm_epsilon))
        refuse("layer_norm_epsilon", epsilon->dump(), "1e-5");
}

}  // namespace

std::string huggingface_gpt2_config(const Gpt2Config& config, TensorDtype dtype) {
    nlohmann::ordered_json root;
    root["architectures"] = {"GPT2LMHeadModel"};
    root["model_type"] = "gpt2";
    root["vocab_size"] = config.vocabulary;
    root["n_positions"] = config.context;
    root["n_ctx"] = config.context;
    root["n_embd"] = config.hidden;
    root["n_layer"] = config.layers;
    root["n_head"] = config.heads;
    root["n_inner"] = config.feed_forward;
    root["activation_function"] = "gelu_new";
    root["layer_norm_epsilon"] = layer_norm_epsilon;
    root["initializer_range"] = 0.02;
    root["tie_word_embeddings"] = true;
    root["scale_attn_weights"] = true;
    for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"})
        root[dropout] = 0.0;
    // Hugging Face's defaults (50256) lie outside a byte vocabulary.
    root["bos_token_id"] = nullptr;
    root["eos_token_id"] = nullptr;
    root["use_cache"] = true;
    root["torch_dtype"] = dtype == TensorDtype::bf16 ? "bfloat16" : "float32";
    return root.dump(2) + "\n";
}

Gpt2Config parse_huggingface_gpt2_config(const std::string& text) {
    const auto root = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded() || !root.is_object())
        throw std::runtime_error("it is not a JSON object");
    require_same_arithmetic(root);
    Gpt2Config config;
    config.layers = size_of(root, "n_layer");
    config.hidden = size_of(root, "n_embd");
    config.heads = size_of(root, "n_head");
    config.vocabulary = size_of(root, "vocab_size");
    config.context = size_of(root, "n_positions");
    config.feed_forward = given(root, "n_inner") == nullptr ? 0 : size_of(root, "n_inner");
    resolve(config);
    return config;
}

}  // namespace spillway::engine
