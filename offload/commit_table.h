// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "offload/plane.h"

namespace spillway::offload {

/// Identifies a run for ever; printed as a UUID (RFC 4122, version 4).
struct RunId {
    std::array<std::uint8_t, 16> bytes{};
    friend bool operator==(const RunId&, const RunId&) = default;
    [[nodiscard]] static RunId random();
    [[nodiscard]] std::string text() const;
    /// Throws std::invalid_argument naming the text.
    [[nodiscard]] static RunId parse(std::string_view text);
};

/// Where the stored copy of every tile of one plane lies, and its checksum.
struct PlaneTable {
    std::vector<std::uint8_t> copies;      ///< per tile: 0 or 1
    std::vector<std::uint64_t> checksums;  ///< per tile: XXH3-64 of the stored bytes
};

/// Everything a commit names. All planes of all tiles are at `update`.
struct CommitTable {
    std::uint64_t sequence = 0;
    std::uint64_t iteration = 0;
    std::uint64_t update = 0;
    std::vector<std::uint64_t> tensor_steps;  ///< per tensor: updates it has seen
    PlaneSet stored = training_planes;        ///< the planes that have a table
    PerPlane<PlaneTable> planes;
    /// With several drives, where the copies of regions lie (detail::ExtentMap); else empty.
    std::vector<std::uint64_t> places = {};
    /// Second moments of an optimizer that factors them (FactorLayout); else empty.
    std::vector<float> factors = {};
    std::string client_state;  ///< opaque to this layer (data position, elapsed budget ...), at
                               ///< most client_state_limit_bytes

    static constexpr std::size_t client_state_limit_bytes = 65536;
};

/// What a table's size depends on.
struct CommitTableShape {
    std::uint64_t tiles = 0;
    std::uint32_t tensors = 0;
    PlaneSet planes = training_planes;
    std::uint64_t places = 0;   ///< 0 on one drive
    std::uint64_t factors = 0;  ///< values of factored second moments
    friend bool operator==(const CommitTableShape&, const CommitTableShape&) = default;
};

[[nodiscard]] CommitTableShape shape_of(const CommitTable& table);

/// Most bytes a serialised table of this shape takes, rounded up to 4096.
[[nodiscard]] std::size_t table_capacity_bytes(const CommitTableShape& shape);

/// Little-endian, versioned. Writes into `out` (table_capacity_bytes long, zero-filled behind the
/// end) and returns the length used.
[[nodiscard]] std::size_t serialise(const CommitTable& table, const RunId& run,
                                    std::span<std::byte> out);

/// Throws std::runtime_error saying what is wrong (magic, version, run, shape, truncation); never
/// reads outside `bytes`.
[[nodiscard]] CommitTable parse_table(std::span<const std::byte> bytes, const RunId& run,
                                      const CommitTableShape& shape);

}  // namespace spillway::offload
