// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/interop/tensor_dtype.h"

/// engine/interop/: models in other programs' formats. A safetensors file is: header length (8
/// bytes, little-endian), header (JSON), data. See https://huggingface.co/docs/safetensors,
/// "Format".
namespace spillway::engine {

/// The most bytes of a header that any reader of the format accepts.
inline constexpr std::uint64_t safetensors_header_limit_bytes = 100'000'000;

struct SafetensorsTensor {
    std::string name;
    TensorDtype dtype = TensorDtype::f32;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin_bytes = 0;  ///< from the start of the data
    std::uint64_t end_bytes = 0;

    [[nodiscard]] std::uint64_t size_bytes() const noexcept { return end_bytes - begin_bytes; }
    [[nodiscard]] std::uint64_t elements() const noexcept {
        return size_bytes() / dtype_bytes(dtype);
    }
};

struct SafetensorsHeader {
    std::vector<SafetensorsTensor> tensors;  ///< by begin_bytes
    std::map<std::string, std::string> metadata;
};

/// Trusts nothing: every tensor has a known dtype and a range that equals its shape times its
/// dtype; the ranges cover `data_bytes` without gap or overlap; no name comes twice. Else a
/// std::runtime_error that names the tensor, what was found and what is needed.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view json,
                                                         std::uint64_t data_bytes);

/// Lays the tensors out one behind the other in the order given (begin_bytes and end_bytes are set)
/// and returns the header's JSON, padded with spaces so that the data starts on an edge of 8 bytes.
/// Throws std::invalid_argument on a repeated name or a size that overflows.
[[nodiscard]] std::string layout_safetensors(SafetensorsHeader& header);

}  // namespace spillway::engine
