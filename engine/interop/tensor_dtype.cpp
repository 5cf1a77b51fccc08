// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/tensor_dtype.h"

#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

#include "cpu_optim/split_master.h"

namespace spillway::engine {

static_assert(std::endian::native == std::endian::little, "tensor files are little-endian");

namespace {

struct DtypeRow {
    TensorDtype dtype;
    std::string_view name;
    std::size_t bytes;
};

constexpr std::array dtype_rows{
    DtypeRow{TensorDtype::boolean, "BOOL", 1},    DtypeRow{TensorDtype::u8, "U8", 1},
    DtypeRow{TensorDtype::i8, "I8", 1},           DtypeRow{TensorDtype::f8_e5m2, "F8_E5M2", 1},
    DtypeRow{TensorDtype::f8_e4m3, "F8_E4M3", 1}, DtypeRow{TensorDtype::u16, "U16", 2},
    DtypeRow{TensorDtype::i16, "I16", 2},         DtypeRow{TensorDtype::f16, "F16", 2},
    DtypeRow{TensorDtype::bf16, "BF16", 2},       DtypeRow{TensorDtype::u32, "U32", 4},
    DtypeRow{TensorDtype::i32, "I32", 4},         DtypeRow{TensorDtype::f32, "F32", 4},
    DtypeRow{TensorDtype::u64, "U64", 8},         DtypeRow{TensorDtype::i64, "I64", 8},
    DtypeRow{TensorDtype::f64, "F64", 8},
};

const DtypeRow& row_of(TensorDtype dtype) noexcept {
    return dtype_rows[static_cast<std::size_t>(dtype)];
}

std::uint16_t load_u16(const std::byte* from) noexcept {
    std::uint16_t value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
}

/// IEEE 754 binary16 to binary32; every value of the former is one of the latter.
float float_of_half(std::uint16_t half) noexcept {
    const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
    const std::uint32_t magnitude = half & 0x7FFFu;
    if (magnitude >= 0x7C00u)  // infinity and NaN keep their payload
        return std::bit_cast<float>(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
    if (magnitude >= 0x0400u)  // the exponents' biases differ by 127 - 15
        return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

void require_bytes(TensorDtype dtype, std::size_t bytes, std::size_t elements) {
    if (bytes != elements * dtype_bytes(dtype))
        throw std::invalid_argument(fmt::format("{} elements of {} are {} bytes, not {}", elements,
                                                dtype_name(dtype), elements * dtype_bytes(dtype),
                                                bytes));
}

[[noreturn]] void refuse(TensorDtype dtype, std::string_view accepted) {
    throw std::invalid_argument(
        fmt::format("elements of type {} are not converted here; {}", dtype_name(dtype), accepted));
}

}  // namespace

std::string_view dtype_name(TensorDtype dtype) noexcept {
    return row_of(dtype).name;
}
std::size_t dtype_bytes(TensorDtype dtype) noexcept {
    return row_of(dtype).bytes;
}

std::optional<TensorDtype> parse_dtype(std::string_view name) noexcept {
    for (const auto& row : dtype_rows) {
        if (row.name == name)
            return row.dtype;
    }
    return std::nullopt;
}

bool is_float_convertible(TensorDtype dtype) noexcept {
    return dtype == TensorDtype::f32 || dtype == TensorDtype::bf16 || dtype == TensorDtype::f16;
}

void decode_floats(TensorDtype dtype, std::span<const std::byte> stored, std::span<float> out) {
    if (!is_float_convertible(dtype))
        refuse(dtype, "F32, BF16 and F16 are");
    require_bytes(dtype, stored.size(), out.size());
    if (out.empty())
        return;
    if (dtype == TensorDtype::f32) {
        std::memcpy(out.data(), stored.data(), stored.size());
        return;
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
        const auto bits = load_u16(stored.data() + 2 * i);
        out[i] = dtype == TensorDtype::f16 ? float_of_half(bits)
                                           : std::bit_cast<float>(std::uint32_t{bits} << 16);
    }
}

void encode_floats(TensorDtype dtype, std::span<const float> values, std::span<std::byte> stored) {
    if (dtype != TensorDtype::f32 && dtype != TensorDtype::bf16)
        refuse(dtype, "F32 and BF16 are");
    require_bytes(dtype, stored.size(), values.size());
    if (values.empty())
        return;
    if (dtype == TensorDtype::f32) {
        std::memcpy(stored.data(), values.data(), stored.size());
        return;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint16_t bits = cpu_optim::split(values[i]).hi;
        std::memcpy(stored.data() + 2 * i, &bits, sizeof bits);
    }
}

}  // namespace spillway::engine
