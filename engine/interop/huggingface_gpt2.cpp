// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/huggingface_gpt2.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/interop/atomic_file.h"
#include "engine/interop/conv1d_layout.h"
#include "engine/interop/input_file.h"
#include "engine/interop/safetensors_writer.h"

namespace spillway::engine {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view prefix = "transformer.";
/// A piece is converted in parts, whatever its size.
constexpr std::size_t plain_piece_elements = std::size_t{64} << 10;

std::vector<std::uint64_t> stored_shape(const offload::TensorSpec& spec) {
    auto shape = spec.shape;
    if (is_conv1d(spec.name))
        std::reverse(shape.begin(), shape.end());
    return shape;
}

/// What export leaves when it is killed.
bool is_own_partial(const fs::path& file) {
    return file.filename() == partial_path_of(huggingface_weights_name) ||
           file.filename() == partial_path_of(huggingface_config_name);
}

SafetensorsHeader header_of(const std::vector<offload::TensorSpec>& specs, TensorDtype dtype) {
    SafetensorsHeader header;
    header.metadata.emplace("format", "pt");  // Hugging Face's loader refuses files without it
    for (const auto& spec : specs)
        header.tensors.push_back({spec.name, dtype, stored_shape(spec), 0, 0});
    return header;
}

void write_plain(SafetensorsWriter& writer, std::size_t tensor, std::uint64_t first,
                 std::span<const float> values) {
    const auto dtype = writer.tensors()[tensor].dtype;
    std::vector<std::byte> stored;
    while (!values.empty()) {
        const auto part = values.first(std::min(values.size(), plain_piece_elements));
        stored.resize(part.size() * dtype_bytes(dtype));
        encode_floats(dtype, part, stored);
        writer.write(tensor, first * dtype_bytes(dtype), stored);
        first += part.size();
        values = values.subspan(part.size());
    }
}

void write_tensor(SafetensorsWriter& writer, offload::TensorId tensor,
                  const offload::TensorSpec& spec, const VisitTensor& visit,
                  std::size_t buffer_bytes) {
    if (!is_conv1d(spec.name)) {
        visit(tensor, [&](std::uint64_t first, std::span<const float> values) {
            write_plain(writer, tensor, first, values);
        });
        return;
    }
    Conv1dSink sink(writer, tensor, buffer_bytes);
    std::uint64_t expected = 0;
    visit(tensor, [&](std::uint64_t first, std::span<const float> values) {
        if (first != expected)
            throw std::logic_error(fmt::format("pieces of '{}' out of order: element {} after {}",
                                               spec.name, first, expected));
        expected += values.size();
        sink.take(values);
    });
}

Gpt2Config read_config(const fs::path& folder) {
    const auto path = folder / huggingface_config_name;
    try {
        return parse_huggingface_gpt2_config(read_regular_file(path));
    } catch (const std::exception& error) {
        throw std::runtime_error(fmt::format("{}: {}", path.string(), error.what()));
    }
}

/// The one file of weights; other ways to store them are refused by name.
fs::path weights_path(const fs::path& folder) {
    const auto path = folder / huggingface_weights_name;
    if (fs::exists(path))
        return path;
    for (const char* other : {"model.safetensors.index.json", "pytorch_model.bin"}) {
        if (fs::exists(folder / other))
            throw std::runtime_error(
                fmt::format("{} holds {}, which is not read yet; store the model "
                            "as one {} (save_pretrained with max_shard_size)",
                            folder.string(), other, huggingface_weights_name));
    }
    throw std::runtime_error(
        fmt::format("{} has no {}", folder.string(), huggingface_weights_name));
}

/// Tensors of other versions of the model that carry no parameters of their own: causal masks, and
/// the output layer, which is the token embedding.
bool is_passed_over(std::string_view name) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name == "lm_head.weight";
}

}  // namespace

void check_export_folder(const fs::path& folder) {
    const auto status = fs::status(folder);
    if (!fs::exists(status))
        return;
    if (!fs::is_directory(status))
        throw std::runtime_error(
            fmt::format("{} exists and is not a folder; name a new one", folder.string()));
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (!is_own_partial(entry.path()))
            throw std::runtime_error(
                fmt::format("{} is not empty (it holds {}); name a new or an "
                            "empty folder",
                            folder.string(), entry.path().filename().string()));
    }
}

ExportSummary export_huggingface_gpt2(const Gpt2Config& config, const VisitTensor& visit,
                                      const fs::path& folder, const ExportOptions& options) {
    check_export_folder(folder);
    fs::create_directories(folder);
    const auto specs = gpt2_tensors(config);
    const auto path = folder / huggingface_weights_name;
    ExportSummary summary;
    {
        SafetensorsWriter writer(path, header_of(specs, options.dtype));
        for (offload::TensorId tensor = 0; tensor < specs.size(); ++tensor) {
            write_tensor(writer, tensor, specs[tensor], visit, options.buffer_bytes);
            summary.parameters += specs[tensor].elements();
        }
        writer.finish();
    }
    try {
        write_file_atomically(folder / huggingface_config_name,
                              huggingface_gpt2_config(config, options.dtype));
    } catch (...) {
        std::error_code ignored;
        fs::remove(path, ignored);
        throw;
    }
    summary.tensors = specs.size();
    summary.file_bytes = fs::file_size(path);
    return summary;
}

HuggingfaceGpt2::HuggingfaceGpt2(const fs::path& folder)
    : folder_(folder),
      config_(read_config(folder)),
      specs_(gpt2_tensors(config_)),
      reader_(weights_path(folder)) {
    match_tensors();
}

void HuggingfaceGpt2::match_tensors() {
    const auto path = (folder_ / huggingface_weights_name).string();
    std::set<std::string_view> used;
    for (const auto& spec : specs_) {
        const auto* stored = reader_.find(spec.name);
        if (stored == nullptr && spec.name.starts_with(prefix))
            stored = reader_.find(spec.name.substr(prefix.size()));
        if (stored == nullptr)
            throw std::runtime_error(fmt::format("{} has no tensor '{}'", path, spec.name));
        if (stored->shape != stored_shape(spec))
            throw std::runtime_error(fmt::format(
                "{}: tensor '{}' has the shape [{}]; config.json asks for [{}]", path, stored->name,
                fmt::join(stored->shape, ", "), fmt::join(stored_shape(spec), ", ")));
        used.insert(stored->name);
        stored_.push_back(stored);
    }
    for (const auto& tensor : reader_.tensors()) {
        if (!used.contains(tensor.name) && !is_passed_over(tensor.name))
            throw std::runtime_error(
                fmt::format("{}: tensor '{}' is not one of a GPT-2 with {} layers", path,
                            tensor.name, config_.layers));
    }
}

void HuggingfaceGpt2::read_tensor(offload::TensorId tensor, std::span<float> out) const {
    const auto& stored = *stored_.at(tensor);
    if (out.size() != stored.elements())
        throw std::invalid_argument(fmt::format("tensor '{}' has {} elements, not {}", stored.name,
                                                stored.elements(), out.size()));
    if (is_conv1d(specs_[tensor].name))
        read_conv1d(reader_, stored, out);
    else
        reader_.read_floats(stored, 0, out);
}

}  // namespace spillway::engine
