// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/huggingface_gpt2.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "engine/interop/atomic_file.h"
#include "engine/interop/safetensors_writer.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

Gpt2Config small_model() {
    Gpt2Config config;
    config.layers = 2;
    config.hidden = 24;
    config.heads = 3;
    config.vocabulary = 37;
    config.context = 19;
    config.feed_forward = 70;  // not 4 x hidden: n_inner must travel
    return config;
}

/// Distinct per tensor and element, and exact in bf16.
float value_of(offload::TensorId tensor, std::uint64_t element) {
    return static_cast<float>((element * 7 + tensor * 31) % 251) - 125.0f;
}

/// Gives a tensor in pieces of uneven length.
VisitTensor pieces_of(const std::vector<offload::TensorSpec>& specs, std::size_t piece) {
    return [&specs, piece](offload::TensorId tensor, const TensorPieces& visit) {
        std::vector<float> values(specs[tensor].elements());
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = value_of(tensor, i);
        for (std::size_t first = 0; first < values.size(); first += piece)
            visit(first, std::span(values).subspan(first, std::min(piece, values.size() - first)));
    };
}

std::string text_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void edit_config(const fs::path& folder, const std::string& key, const nlohmann::json& value) {
    auto root = nlohmann::json::parse(text_of(folder / huggingface_config_name));
    root[key] = value;
    std::ofstream(folder / huggingface_config_name) << root;
}

}  // namespace

TEST_CASE("huggingface_gpt2: config.json says what Hugging Face needs, and reads back") {
    const auto text = huggingface_gpt2_config(small_model(), TensorDtype::bf16);
    const auto root = nlohmann::json::parse(text);
    CHECK(root["architectures"][0] == "GPT2LMHeadModel");
    CHECK(root["activation_function"] == "gelu_new");
    CHECK(root["layer_norm_epsilon"] == 1e-5);
    CHECK(root["n_inner"] == 70);
    CHECK(root["tie_word_embeddings"] == true);
    CHECK(root["torch_dtype"] == "bfloat16");
    const auto config = parse_huggingface_gpt2_config(text);
    CHECK(config.layers == 2);
    CHECK(config.hidden == 24);
    CHECK(config.heads == 3);
    CHECK(config.vocabulary == 37);
    CHECK(config.context == 19);
    CHECK(config.feed_forward == 70);
}

TEST_CASE("huggingface_gpt2: an export reads back bit for bit, whatever pieces and panels") {
    const auto specs = gpt2_tensors(small_model());
    for (const auto dtype : {TensorDtype::f32, TensorDtype::bf16}) {
        for (const std::size_t buffer_bytes :
             {std::size_t{1}, std::size_t{3000}, std::size_t{1} << 20}) {
            const testing::TemporaryFolder folder;
            const auto summary = export_huggingface_gpt2(
                small_model(), pieces_of(specs, 101), folder.path() / "out", {dtype, buffer_bytes});
            CHECK(summary.tensors == specs.size());
            CHECK(summary.file_bytes == fs::file_size(folder.path() / "out/model.safetensors"));
            const HuggingfaceGpt2 model(folder.path() / "out");
            REQUIRE(model.tensors().size() == specs.size());
            for (offload::TensorId tensor = 0; tensor < specs.size(); ++tensor) {
                INFO(specs[tensor].name);
                std::vector<float> values(specs[tensor].elements());
                model.read_tensor(tensor, values);
                bool equal = true;
                for (std::size_t i = 0; i < values.size(); ++i)
                    equal = equal && values[i] == value_of(tensor, i);
                CHECK(equal);
            }
        }
    }
}

TEST_CASE("huggingface_gpt2: Conv1D matrices are stored [inputs, outputs]") {
    const testing::TemporaryFolder folder;
    const auto specs = gpt2_tensors(small_model());
    export_huggingface_gpt2(small_model(), pieces_of(specs, 500), folder.path(), {});
    const SafetensorsReader reader(folder.path() / huggingface_weights_name);
    const std::string name = "transformer.h.1.mlp.c_fc.weight";
    const auto* stored = reader.find(name);
    REQUIRE(stored != nullptr);
    CHECK(stored->shape == std::vector<std::uint64_t>{24, 70});
    const auto spec = std::find_if(specs.begin(), specs.end(),
                                   [&](const auto& each) { return each.name == name; });
    REQUIRE(spec != specs.end());
    const auto tensor = static_cast<offload::TensorId>(spec - specs.begin());
    float value = 0;
    reader.read_floats(*stored, 3 * 70 + 5, std::span(&value, 1));  // input 3, output 5
    CHECK(value == value_of(tensor, 5 * 24 + 3));
    CHECK(reader.find("lm_head.weight") == nullptr);
    CHECK(reader.metadata().at("format") == "pt");
}

TEST_CASE("huggingface_gpt2: only a missing or empty folder is exported into") {
    const testing::TemporaryFolder folder;
    const auto specs = gpt2_tensors(small_model());
    const auto occupied = folder.path() / "occupied";
    fs::create_directory(occupied);
    std::ofstream(occupied / "precious.txt") << "mine";
    CHECK_THROWS_WITH(export_huggingface_gpt2(small_model(), pieces_of(specs, 500), occupied, {}),
                      Contains("not empty") && Contains("precious.txt"));
    CHECK_THROWS_WITH(export_huggingface_gpt2(small_model(), pieces_of(specs, 500),
                                              occupied / "precious.txt", {}),
                      Contains("not a folder"));
    const auto interrupted = folder.path() / "interrupted";
    fs::create_directory(interrupted);
    std::ofstream(partial_path_of(interrupted / huggingface_weights_name)) << "half";
    export_huggingface_gpt2(small_model(), pieces_of(specs, 500), interrupted, {});
    CHECK(HuggingfaceGpt2(interrupted).config().layers == 2);
}

TEST_CASE("huggingface_gpt2: a failing source leaves no file") {
    const testing::TemporaryFolder folder;
    const auto specs = gpt2_tensors(small_model());
    const auto good = pieces_of(specs, 500);
    const VisitTensor failing = [&](offload::TensorId tensor, const TensorPieces& visit) {
        if (tensor == 5)
            throw std::runtime_error("tile 3 is damaged");
        good(tensor, visit);
    };
    CHECK_THROWS_WITH(export_huggingface_gpt2(small_model(), failing, folder.path(), {}),
                      Contains("tile 3"));
    CHECK(fs::is_empty(folder.path()));
    const VisitTensor short_of_one = [&](offload::TensorId tensor, const TensorPieces& visit) {
        if (tensor != 5)
            good(tensor, visit);
    };
    CHECK_THROWS_WITH(export_huggingface_gpt2(small_model(), short_of_one, folder.path(), {}),
                      Contains(specs[5].name));
    CHECK(fs::is_empty(folder.path()));
}

TEST_CASE("huggingface_gpt2: a model that computes something else is refused by key") {
    const testing::TemporaryFolder folder;
    const auto specs = gpt2_tensors(small_model());
    const auto refusal = [&](const std::string& key, const nlohmann::json& value) -> std::string {
        const testing::TemporaryFolder inner;
        export_huggingface_gpt2(small_model(), pieces_of(specs, 500), inner.path(), {});
        edit_config(inner.path(), key, value);
        try {
            const HuggingfaceGpt2 model(inner.path());
        } catch (const std::runtime_error& error) {
            return error.what();
        }
        return "accepted";
    };
    CHECK_THAT(refusal("activation_function", "relu"), Contains("relu") && Contains("gelu_new"));
    CHECK_THAT(refusal("layer_norm_epsilon", 1e-6), Contains("layer_norm_epsilon"));
    CHECK_THAT(refusal("tie_word_embeddings", false), Contains("tie_word_embeddings"));
    CHECK_THAT(refusal("scale_attn_by_inverse_layer_idx", true), Contains("inverse_layer"));
    CHECK_THAT(refusal("model_type", "llama"), Contains("llama"));
    CHECK_THAT(refusal("n_layer", 3), Contains("no tensor 'transformer.h.2."));
    CHECK_THAT(refusal("n_layer", 1), Contains("transformer.h.1.") && Contains("1 layers"));
    CHECK_THAT(refusal("n_layer", -1), Contains("n_layer") && Contains("-1"));
    CHECK_THAT(refusal("n_embd", 27), Contains("shape"));
    CHECK_THAT(refusal("n_head", 5), Contains("head"));
    CHECK_THAT(refusal("vocab_size", nullptr), Contains("'vocab_size' is missing"));
    CHECK(refusal("activation_function", "gelu_pytorch_tanh") == "accepted");
    CHECK(refusal("n_ctx", 7) == "accepted");
    const auto config = folder.path() / huggingface_config_name;
    CHECK_THROWS_WITH(HuggingfaceGpt2(folder.path()), Contains(config.string() + ": is not there"));
    REQUIRE(::mkfifo(config.c_str(), 0600) == 0);
    CHECK_THROWS_WITH(HuggingfaceGpt2(folder.path()), Contains(config.string() + ": is a pipe"));
    fs::remove(config);
    std::ofstream(folder.path() / huggingface_config_name)
        << huggingface_gpt2_config(small_model(), TensorDtype::f32);
    CHECK_THROWS_WITH(HuggingfaceGpt2(folder.path()), Contains("has no model.safetensors"));
    std::ofstream(folder.path() / "model.safetensors.index.json") << "{}";
    CHECK_THROWS_WITH(HuggingfaceGpt2(folder.path()), Contains("index.json"));
}

TEST_CASE("huggingface_gpt2: names without the prefix, masks and a tied head are known") {
    const testing::TemporaryFolder folder;
    const auto specs = gpt2_tensors(small_model());
    export_huggingface_gpt2(small_model(), pieces_of(specs, 500), folder.path() / "ours", {});
    const SafetensorsReader ours(folder.path() / "ours" / huggingface_weights_name);
    SafetensorsHeader header;
    for (const auto& tensor : ours.tensors())
        header.tensors.push_back({tensor.name.substr(12), tensor.dtype, tensor.shape, 0, 0});
    const auto own = header.tensors.size();
    header.tensors.push_back({"h.0.attn.bias", TensorDtype::u8, {1, 1, 4, 4}, 0, 0});
    header.tensors.push_back({"lm_head.weight", TensorDtype::f32, {37, 24}, 0, 0});
    const auto theirs = folder.path() / "theirs";
    fs::create_directory(theirs);
    fs::copy_file(folder.path() / "ours" / huggingface_config_name,
                  theirs / huggingface_config_name);
    SafetensorsWriter writer(theirs / huggingface_weights_name, header);
    for (std::size_t i = 0; i < header.tensors.size(); ++i) {
        std::vector<std::byte> bytes(writer.tensors()[i].size_bytes());
        if (i < own)
            ours.read(ours.tensors()[i], 0, bytes);
        writer.write(i, 0, bytes);
    }
    writer.finish();
    const HuggingfaceGpt2 model(theirs);
    std::vector<float> values(specs[0].elements());
    model.read_tensor(0, values);
    CHECK(values[77] == value_of(0, 77));
    CHECK_THROWS_AS(model.read_tensor(1, values), std::invalid_argument);
}

}  // namespace spillway::engine
