// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "engine/model/gpt2_config.h"
#include "engine/model/gpt2_step.h"
#include "offload/activations.h"
#include "offload/plan.h"

namespace spillway::engine {

/// The inputs of all layers, `in_host` of those that leave the device in host memory, evenly spread
/// over them, the others on a drive.
[[nodiscard]] offload::ActivationLayout input_layout(const Gpt2Config& config,
                                                     const BatchShape& shape, std::size_t in_host);

/// Layers whose inputs leave the device with that many places there.
[[nodiscard]] std::size_t leaving_inputs(const Gpt2Config& config,
                                         const BatchShape& shape) noexcept;

/// Whether all that costs more a byte and step than an input on a drive is in host memory. A
/// working weight or its residue there is read two or three times a step, and written once; an
/// input, like the gradients and moments, is written once and read once. Of equals the inputs come
/// first: they are copied both ways beside that.
[[nodiscard]] bool dearer_than_inputs_resident(const offload::OffloadPlan& plan);

}  // namespace spillway::engine
