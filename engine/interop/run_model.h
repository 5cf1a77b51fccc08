// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>

#include "engine/model/gpt2_config.h"
#include "offload/state_folder.h"
#include "offload/state_reader.h"

namespace spillway::engine {

/// The model a state folder holds, from the settings recorded in it. Throws std::runtime_error if
/// they cannot be read or do not make the folder's own list of tensors (it names the first that
/// differs).
[[nodiscard]] Gpt2Config model_of_run(const offload::Manifest& manifest);

/// What `--weights last|average` of a run's folder asks for. Throws UsageError if there is no
/// average, or not yet.
[[nodiscard]] offload::WeightKind stored_weights(const offload::StateReader& reader,
                                                 const std::string& weights);

}  // namespace spillway::engine
