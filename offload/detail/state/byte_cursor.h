// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <type_traits>

namespace spillway::offload::detail {

// Files are little-endian; so is every machine this is built for, and plain copies do.
static_assert(std::endian::native == std::endian::little);

/// Puts values one after another into a buffer. Throws std::length_error rather than write outside.
class ByteWriter {
  public:
    explicit ByteWriter(std::span<std::byte> out) noexcept : out_(out) {}

    void put_bytes(std::span<const std::byte> bytes) {
        if (bytes.size() > out_.size() - position_)
            throw std::length_error("the buffer is too small for what is written into it");
        if (!bytes.empty())
            std::memcpy(out_.data() + position_, bytes.data(), bytes.size());
        position_ += bytes.size();
    }
    template <typename T>
    requires std::is_trivially_copyable_v<T>
    void put(const T& value) { put_bytes(std::as_bytes(std::span(&value, 1))); }
    /// Zeros up to the next multiple of `step_bytes`.
    void pad(std::size_t step_bytes) {
        while (position_ % step_bytes != 0)
            put(std::byte{0});
    }
    [[nodiscard]] std::size_t position() const noexcept { return position_; }

  private:
    std::span<std::byte> out_;
    std::size_t position_ = 0;
};

/// The way back. Throws std::runtime_error rather than read outside.
class ByteReader {
  public:
    explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

    void get_bytes(std::span<std::byte> into) {
        if (into.size() > bytes_.size() - position_)
            throw std::runtime_error("it ends too early");
        if (!into.empty())
            std::memcpy(into.data(), bytes_.data() + position_, into.size());
        position_ += into.size();
    }
    template <typename T>
    requires std::is_trivially_copyable_v<T>
    [[nodiscard]] T get() {
        T value{};
        get_bytes(std::as_writable_bytes(std::span(&value, 1)));
        return value;
    }
    void pad(std::size_t step_bytes) {
        while (position_ % step_bytes != 0)
            static_cast<void>(get<std::byte>());
    }

  private:
    std::span<const std::byte> bytes_;
    std::size_t position_ = 0;
};

}  // namespace spillway::offload::detail
