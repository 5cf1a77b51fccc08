// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "offload/commit_table.h"
#include "offload/detail/drives/extent_map.h"
#include "offload/plan.h"
#include "offload/state_folder.h"

/// What a run's manifest says about the shape of its extents and tables.
namespace spillway::offload::detail {

[[nodiscard]] Durability durability_of(const Manifest& manifest) noexcept;
/// Without places: those are the commit table's.
[[nodiscard]] ExtentMap extent_map_of(const Manifest& manifest);
[[nodiscard]] CommitTableShape table_shape_of(const Manifest& manifest);
/// That extents take over all drives.
[[nodiscard]] std::uint64_t extents_bytes_of(const Manifest& manifest);

}  // namespace spillway::offload::detail
