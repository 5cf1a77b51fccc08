// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/manifest_layout.h"

namespace spillway::offload::detail {
namespace {

std::uint64_t tiles_of(const Manifest& manifest) {
    return ElementOrder(manifest.tensors).tiles();
}

}  // namespace

Durability durability_of(const Manifest& manifest) noexcept {
    return manifest.durability == "off" ? Durability::off : Durability::on;
}

ExtentMap extent_map_of(const Manifest& manifest) {
    return {tiles_of(manifest), durability_of(manifest), manifest.planes, manifest.region_tiles};
}

CommitTableShape table_shape_of(const Manifest& manifest) {
    const ElementOrder order(manifest.tensors);
    return {order.tiles(), static_cast<std::uint32_t>(manifest.tensors.size()), manifest.planes,
            place_count(order.tiles(), durability_of(manifest), manifest.region_tiles),
            factor_values(order, manifest.second_moments)};
}

std::uint64_t extents_bytes_of(const Manifest& manifest) {
    return extents_bytes(tiles_of(manifest), durability_of(manifest), manifest.planes,
                         manifest.region_tiles);
}

}  // namespace spillway::offload::detail
