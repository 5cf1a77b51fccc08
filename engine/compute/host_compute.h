// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>

#include "engine/compute/compute.h"

namespace spillway::engine {

/// On the threads of `pool`, inside the stream's functions.
[[nodiscard]] std::unique_ptr<Compute> make_host_compute(cuda::Stream& stream, ComputePool& pool);

}  // namespace spillway::engine
