// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>

#include "engine/interop/tensor_dtype.h"
#include "offload/tensor_optimizer.h"

namespace spillway::integrations {

/// The fp32 masters of all tensors, by name and in order, as a safetensors file: f32 exactly, or
/// their bf16 halves. Waits for the update in flight; takes 1 MiB of memory. `path` is absent, old
/// or whole at any moment, and durable on return. Throws std::invalid_argument on another type,
/// std::system_error naming the path, and as TensorOptimizer::read_masters().
void export_masters(offload::TensorOptimizer& optimizer, const std::filesystem::path& path,
                    engine::TensorDtype dtype);

}  // namespace spillway::integrations
