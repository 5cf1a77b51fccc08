// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <vector>

namespace spillway::nvme::testing {

/// Bytes that tell every position and seed apart.
inline void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed) {
    std::uint64_t state = seed * 0x9e3779b97f4a7c15U + 1;
    // In blocks: a sanitizer looks at each copy.
    std::uint64_t block[512];
    for (std::size_t at = 0; at < bytes.size(); at += sizeof block) {
        for (std::uint64_t& word : block) {
            state ^= state << 13U;
            state ^= state >> 7U;
            state ^= state << 17U;
            word = state;
        }
        std::memcpy(bytes.data() + at, block, std::min(sizeof block, bytes.size() - at));
    }
}

inline bool has_pattern(std::span<const std::byte> bytes, std::uint64_t seed) {
    std::vector<std::byte> expected(bytes.size());
    fill_pattern(expected, seed);
    return std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0;
}

// One call each: byte by byte, a sanitizer would take seconds.
inline void fill_with(std::span<std::byte> bytes, std::byte value) {
    std::memset(bytes.data(), std::to_integer<int>(value), bytes.size());
}
inline bool has_only(std::span<const std::byte> bytes, std::byte value) {
    return bytes.empty() || (bytes.front() == value &&
                             std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

/// The file as the page cache shows it.
inline std::vector<std::byte> contents(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
    std::vector<std::byte> bytes(text.size());
    if (!bytes.empty())
        std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
}

}  // namespace spillway::nvme::testing
