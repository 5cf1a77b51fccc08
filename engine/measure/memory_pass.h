// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>

#include "engine/compute/compute_pool.h"

namespace spillway::engine {

/// Changes whole pieces of `memory` in place on all threads of the pool, each piece of a size that
/// the second-level cache holds, as the tiles of an update are. Returns the bytes that it moved:
/// each one read and written.
std::size_t change_in_place(ComputePool& pool, std::span<std::byte> memory);

}  // namespace spillway::engine
