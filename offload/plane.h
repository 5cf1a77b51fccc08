// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "offload/element_order.h"

namespace spillway::offload {

/// What is stored per parameter: one array over the global element order each. m, v and extra are
/// the optimizer's state planes in its own order (a momentum buffer alone is m).
enum class Plane : std::uint8_t { weight, residue, m, v, extra };

inline constexpr std::size_t plane_count = 5;

/// One value for each plane, by index_of().
template <typename Value>
using PerPlane = std::array<Value, plane_count>;

/// Which planes there are. Iterates in the order of the enumeration.
class PlaneSet {
  public:
    class Iterator {
      public:
        using difference_type = std::ptrdiff_t;
        using value_type = Plane;
        constexpr Iterator() = default;
        constexpr Iterator(std::uint32_t bits, std::uint8_t at) noexcept : bits_(bits), at_(at) {
            skip();
        }
        [[nodiscard]] constexpr Plane operator*() const noexcept { return Plane{at_}; }
        constexpr Iterator& operator++() noexcept {
            ++at_;
            skip();
            return *this;
        }
        constexpr Iterator operator++(int) noexcept {
            const auto before = *this;
            ++*this;
            return before;
        }
        friend constexpr bool operator==(const Iterator&, const Iterator&) = default;

      private:
        constexpr void skip() noexcept {
            while (at_ < plane_count && (bits_ >> at_ & 1U) == 0)
                ++at_;
        }
        std::uint32_t bits_ = 0;
        std::uint8_t at_ = 0;
    };

    constexpr PlaneSet() = default;
    constexpr PlaneSet(std::initializer_list<Plane> planes) noexcept {
        for (const auto plane : planes)
            insert(plane);
    }
    /// Bits beyond the planes that exist are dropped.
    [[nodiscard]] static constexpr PlaneSet from_bits(std::uint32_t bits) noexcept {
        PlaneSet planes;
        planes.bits_ = bits & ((1U << plane_count) - 1);
        return planes;
    }
    constexpr void insert(Plane plane) noexcept { bits_ |= 1U << static_cast<unsigned>(plane); }
    [[nodiscard]] constexpr bool contains(Plane plane) const noexcept {
        return (bits_ >> static_cast<unsigned>(plane) & 1U) != 0;
    }
    [[nodiscard]] constexpr std::size_t size() const noexcept {
        return static_cast<std::size_t>(std::popcount(bits_));
    }
    [[nodiscard]] constexpr std::uint32_t bits() const noexcept { return bits_; }
    [[nodiscard]] constexpr Iterator begin() const noexcept { return {bits_, 0}; }
    [[nodiscard]] constexpr Iterator end() const noexcept { return {bits_, plane_count}; }
    friend constexpr bool operator==(const PlaneSet&, const PlaneSet&) = default;

  private:
    std::uint32_t bits_ = 0;
};

/// The first `count` of m, v and extra: where an optimizer with so many values per parameter keeps
/// them.
[[nodiscard]] constexpr PlaneSet state_plane_set(std::size_t count) noexcept {
    PlaneSet planes;
    for (const auto plane : {Plane::m, Plane::v, Plane::extra}) {
        if (planes.size() < count)
            planes.insert(plane);
    }
    return planes;
}

/// What an engine that owns its weights keeps with such an optimizer.
[[nodiscard]] constexpr PlaneSet planes_with_weights(std::size_t state_planes) noexcept {
    auto planes = state_plane_set(state_planes);
    planes.insert(Plane::weight);
    planes.insert(Plane::residue);
    return planes;
}

/// The most usual: AdamW's.
inline constexpr PlaneSet training_planes = planes_with_weights(2);

[[nodiscard]] constexpr std::size_t element_bytes(Plane plane) noexcept {
    return plane == Plane::weight || plane == Plane::residue ? 2 : 4;
}
[[nodiscard]] constexpr std::size_t tile_bytes(Plane plane) noexcept {
    return tile_elements * element_bytes(plane);
}
[[nodiscard]] constexpr std::size_t index_of(Plane plane) noexcept {
    return static_cast<std::size_t>(plane);
}
[[nodiscard]] constexpr std::string_view plane_name(Plane plane) noexcept {
    constexpr PerPlane<std::string_view> names{"weight", "residue", "m", "v", "extra"};
    return names[index_of(plane)];
}

/// Gradients wait as fp32.
inline constexpr std::size_t gradient_tile_bytes = tile_elements * sizeof(float);

/// A run of consecutive tiles.
struct TileRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    [[nodiscard]] std::uint64_t size() const noexcept { return end - begin; }
};

}  // namespace spillway::offload
