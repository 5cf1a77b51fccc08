// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include <fmt/format.h>

#include "integrations/c/detail/failure.h"
#include "integrations/c/spillway_types.h"

/// Structs that begin with their own size (`struct_bytes`), read and written as their caller, who
/// may have compiled a shorter or a longer version, has them.
namespace spillway::c_face {

/// No version is ever larger: what is, is no size but garbage.
inline constexpr std::uint64_t largest_struct_bytes = 4096;

/// Size of T in version 1 of the interface, the least a caller can have. A struct that grows gets
/// a specialisation with its size of then.
template <class T>
inline constexpr std::uint64_t first_struct_bytes = sizeof(T);
template <>
inline constexpr std::uint64_t first_struct_bytes<spillway_group> = 112;
template <>
inline constexpr std::uint64_t first_struct_bytes<spillway_options> = 72;

template <class T>
void check_struct_bytes(std::uint64_t struct_bytes, const char* name) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= largest_struct_bytes);
    // What is no multiple of the alignment is no size either, and would cut a field in two.
    if (struct_bytes < first_struct_bytes<T> || struct_bytes > largest_struct_bytes ||
        struct_bytes % alignof(T) != 0)
        throw std::invalid_argument(fmt::format(
            "{}: struct_bytes is {}; this library needs {} to {}, a multiple of {}: fill the "
            "struct by its _init function, called with its sizeof",
            name, struct_bytes, first_struct_bytes<T>, largest_struct_bytes, alignof(T)));
}

/// A copy of *given, with `defaults` where the caller's version has no field yet. Fields this
/// library does not know must be 0: it could not do what they ask for.
template <class T>
[[nodiscard]] T read_struct(const T* given, T defaults, const char* name) {
    require(given, name);
    const auto bytes = given->struct_bytes;
    check_struct_bytes<T>(bytes, name);
    const auto* raw = reinterpret_cast<const unsigned char*>(given);
    if (std::any_of(raw + std::min<std::uint64_t>(sizeof(T), bytes), raw + bytes,
                    [](unsigned char byte) { return byte != 0; }))
        throw std::invalid_argument(
            fmt::format("{}: struct_bytes is {}, and a field behind the {} bytes this library "
                        "knows is set; use "
                        "a newer library or leave that field 0",
                        name, bytes, sizeof(T)));
    std::memcpy(&defaults, given, std::min<std::uint64_t>(sizeof(T), bytes));
    return defaults;
}

/// Writes as much of `value` as the caller's struct has room for, zeros behind.
template <class T>
void write_struct(T* target, std::uint64_t struct_bytes, T value, const char* name) {
    require(target, name);
    check_struct_bytes<T>(struct_bytes, name);
    std::memset(static_cast<void*>(target), 0, struct_bytes);
    value.struct_bytes = struct_bytes;
    std::memcpy(target, &value, std::min<std::uint64_t>(sizeof(T), struct_bytes));
}

}  // namespace spillway::c_face
