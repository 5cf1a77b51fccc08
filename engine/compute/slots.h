// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

#include "engine/compute/compute_pool.h"

namespace spillway::engine {

/// ComputePool::for_each for bodies that need scratch of their own: runs body(i, slot) for i in
/// [0, count), slot in [0, pool.threads()); no two bodies run in one slot at a time. Which slot an
/// i gets is left to chance, so scratch must not carry anything from one i to the next.
template <typename Body>
void for_each_in_slots(ComputePool& pool, std::size_t count, const Body& body) {
    std::atomic<std::size_t> next{0};
    pool.for_each(pool.threads(), [&](std::size_t slot) {
        for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1))
            body(i, slot);
    });
}

}  // namespace spillway::engine
