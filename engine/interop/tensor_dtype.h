// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace spillway::engine {

/// Element types of tensors in files, as safetensors names them.
enum class TensorDtype {
    boolean,
    u8,
    i8,
    f8_e5m2,
    f8_e4m3,
    u16,
    i16,
    f16,
    bf16,
    u32,
    i32,
    f32,
    u64,
    i64,
    f64,
};

/// "F32", "BF16", ...
[[nodiscard]] std::string_view dtype_name(TensorDtype dtype) noexcept;
[[nodiscard]] std::size_t dtype_bytes(TensorDtype dtype) noexcept;
/// Nothing for a name that is not known.
[[nodiscard]] std::optional<TensorDtype> parse_dtype(std::string_view name) noexcept;

/// Whether decode_floats() and encode_floats() know the type: f32, bf16 and f16 (decoding only).
[[nodiscard]] bool is_float_convertible(TensorDtype dtype) noexcept;

/// out[i] = the i-th stored element, exactly. stored.size() == out.size() * dtype_bytes(dtype).
/// Throws std::invalid_argument for a type that is_float_convertible() denies.
void decode_floats(TensorDtype dtype, std::span<const std::byte> stored, std::span<float> out);

/// Stores `values` as f32 exactly, or as bf16: the bf16 half of the split master (round half up),
/// which is the working weight a training run uses. Throws std::invalid_argument for any other
/// type.
void encode_floats(TensorDtype dtype, std::span<const float> values, std::span<std::byte> stored);

}  // namespace spillway::engine
