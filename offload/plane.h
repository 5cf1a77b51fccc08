// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "cpu_optim/state_format.h"
#include "offload/element_order.h"

namespace spillway::offload {

/// What is stored per parameter, and how: one array over the global element order each. m, v and
/// extra are the optimizer's state planes in its own order (a momentum buffer alone is m).
enum class Plane : std::uint8_t {
    weight,
    residue,
    m,  ///< fp32
    v,
    extra,
    m_bf16,
    v_bf16,
    m_int8,  ///< codes, in blocks of 256 elements (cpu_optim/moment_codec.h)
    v_int8,
    scales,   ///< of the blocks of m_int8 and v_int8: in each tile those of m, then those of v, a
              ///< byte each, and zeros up to 4 KiB
    average,  ///< of the weights over the updates, fp32; zeros before the first
};

inline constexpr std::size_t plane_count = 11;

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
    constexpr void erase(Plane plane) noexcept { bits_ &= ~(1U << static_cast<unsigned>(plane)); }
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

[[nodiscard]] constexpr std::size_t index_of(Plane plane) noexcept {
    return static_cast<std::size_t>(plane);
}
[[nodiscard]] constexpr std::string_view plane_name(Plane plane) noexcept {
    constexpr PerPlane<std::string_view> names{"weight", "residue", "m",      "v",
                                               "extra",  "m_bf16",  "v_bf16", "m_int8",
                                               "v_int8", "scales",  "average"};
    return names[index_of(plane)];
}

/// A multiple of 4 KiB.
[[nodiscard]] constexpr std::size_t tile_bytes(Plane plane) noexcept {
    constexpr PerPlane<std::size_t> per_element{2, 2, 4, 4, 4, 2, 2, 1, 1, 0, 4};
    return plane == Plane::scales ? 4096 : tile_elements * per_element[index_of(plane)];
}
/// Of a plane that has a value for each element: not of scales.
[[nodiscard]] constexpr std::size_t element_bytes(Plane plane) noexcept {
    return tile_bytes(plane) / tile_elements;
}

inline constexpr std::array fp32_state_planes{Plane::m, Plane::v, Plane::extra};
inline constexpr std::array bf16_state_planes{Plane::m_bf16, Plane::v_bf16};
inline constexpr std::array int8_state_planes{Plane::m_int8, Plane::v_int8};

/// The planes in which an optimizer's values of one parameter can be kept, in its order.
[[nodiscard]] constexpr std::span<const Plane> state_planes_in(
    cpu_optim::StateFormat format) noexcept {
    switch (format) {
        case cpu_optim::StateFormat::fp32:
            break;
        case cpu_optim::StateFormat::bf16:
            return bf16_state_planes;
        case cpu_optim::StateFormat::int8:
            return int8_state_planes;
    }
    return fp32_state_planes;
}

/// Where an optimizer with `count` values per parameter keeps them; as many as the format has
/// planes for, at most.
[[nodiscard]] constexpr PlaneSet state_plane_set(
    std::size_t count, cpu_optim::StateFormat format = cpu_optim::StateFormat::fp32) noexcept {
    PlaneSet planes;
    for (const auto plane : state_planes_in(format)) {
        if (planes.size() < count)
            planes.insert(plane);
    }
    if (format == cpu_optim::StateFormat::int8 && count > 0)
        planes.insert(Plane::scales);
    return planes;
}

/// What an engine that owns its weights keeps with such an optimizer.
[[nodiscard]] constexpr PlaneSet planes_with_weights(
    std::size_t state_planes,
    cpu_optim::StateFormat format = cpu_optim::StateFormat::fp32) noexcept {
    auto planes = state_plane_set(state_planes, format);
    planes.insert(Plane::weight);
    planes.insert(Plane::residue);
    return planes;
}

/// The format of the state among `planes`; fp32 if there is none.
[[nodiscard]] constexpr cpu_optim::StateFormat state_format_of(PlaneSet planes) noexcept {
    for (const auto format : {cpu_optim::StateFormat::bf16, cpu_optim::StateFormat::int8}) {
        if (planes.contains(state_planes_in(format).front()))
            return format;
    }
    return cpu_optim::StateFormat::fp32;
}
/// Values per parameter that the state among `planes` keeps.
[[nodiscard]] constexpr std::size_t state_plane_count(PlaneSet planes) noexcept {
    std::size_t count = 0;
    for (const auto plane : state_planes_in(state_format_of(planes)))
        count += planes.contains(plane) ? std::size_t{1} : std::size_t{0};
    return count;
}

/// Where in a tile of scales those of state plane `index` (0: m, 1: v) begin, in bytes.
[[nodiscard]] constexpr std::size_t scales_offset_bytes(std::size_t index) noexcept {
    return index * (tile_elements / tensor_alignment_elements);
}

/// Which weights are read.
enum class WeightKind {
    newest,    ///< those of the last update
    averaged,  ///< Plane::average
};
/// Where they are.
[[nodiscard]] constexpr PlaneSet planes_of(WeightKind kind) noexcept {
    return kind == WeightKind::averaged ? PlaneSet{Plane::average}
                                        : PlaneSet{Plane::weight, Plane::residue};
}

/// The most usual: AdamW's.
inline constexpr PlaneSet training_planes = planes_with_weights(2);

/// Gradients wait as fp32.
inline constexpr std::size_t gradient_tile_bytes = tile_elements * sizeof(float);

/// A run of consecutive tiles.
struct TileRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    [[nodiscard]] std::uint64_t size() const noexcept { return end - begin; }
};

}  // namespace spillway::offload
