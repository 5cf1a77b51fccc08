// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <vector>

#include "engine/model/gpt2_config.h"
#include "engine/model/gpt2_step.h"
#include "offload/activations.h"
#include "offload/plan.h"

namespace spillway::engine {

/// The inputs of all layers, `in_host` of those that leave the device in host memory, evenly spread
/// over them, the others on a drive.
[[nodiscard]] offload::ActivationLayout input_layout(const Gpt2Config& config,
                                                     const BatchShape& shape, std::size_t in_host);

/// Layers whose inputs lose their place on the device.
[[nodiscard]] std::size_t leaving_inputs(const Gpt2Config& config,
                                         const BatchShape& shape) noexcept;
/// Which of them backward makes again; none, where they are moved.
[[nodiscard]] std::vector<std::size_t> inputs_made_again(const Gpt2Config& config,
                                                         const BatchShape& shape);

/// Whether all that costs more a byte and step than an input on a drive is in host memory. A
/// working weight or its residue there is read two or three times a step, and written once; an
/// input, like the gradients and moments, is written once and read once. Of equals the inputs come
/// first: they are copied both ways beside that.
[[nodiscard]] bool dearer_than_inputs_resident(const offload::OffloadPlan& plan);

}  // namespace spillway::engine
