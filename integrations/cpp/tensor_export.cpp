// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/cpp/tensor_export.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

#include "engine/interop/safetensors_writer.h"

namespace spillway::integrations {

namespace {

/// With its encoded form about 1 MiB.
constexpr std::uint64_t piece_elements = 131072;

engine::SafetensorsHeader header_of(std::span<const offload::Parameter> parameters,
                                    engine::TensorDtype dtype) {
    engine::SafetensorsHeader header;
    header.metadata.emplace("format", "pt");  // Hugging Face's loader refuses files without it
    for (const auto& parameter : parameters) {
        auto& tensor = header.tensors.emplace_back();
        tensor.name = parameter.name;
        tensor.dtype = dtype;
        tensor.shape = parameter.shape;
    }
    return header;
}

}  // namespace

void export_masters(offload::TensorOptimizer& optimizer, const std::filesystem::path& path,
                    engine::TensorDtype dtype) {
    if (dtype != engine::TensorDtype::f32 && dtype != engine::TensorDtype::bf16)
        throw std::invalid_argument(fmt::format("masters are exported as F32 or BF16, not as {}",
                                                engine::dtype_name(dtype)));
    engine::SafetensorsWriter writer(path, header_of(optimizer.parameters(), dtype));
    std::vector<float> values(piece_elements);
    std::vector<std::byte> encoded(piece_elements * engine::dtype_bytes(dtype));
    for (std::size_t tensor = 0; tensor < writer.tensors().size(); ++tensor) {
        const auto elements = writer.tensors()[tensor].elements();
        for (std::uint64_t first = 0; first < elements; first += piece_elements) {
            const auto count = std::min(piece_elements, elements - first);
            const auto piece = std::span(values).first(count);
            const auto bytes = std::span(encoded).first(count * engine::dtype_bytes(dtype));
            optimizer.read_masters(static_cast<offload::TensorId>(tensor), first, piece);
            engine::encode_floats(dtype, piece, bytes);
            writer.write(tensor, first * engine::dtype_bytes(dtype), bytes);
        }
    }
    writer.finish();
}

}  // namespace spillway::integrations
