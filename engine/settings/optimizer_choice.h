// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <vector>

#include "cpu_optim/elementwise.h"
#include "cpu_optim/layerwise.h"
#include "engine/settings/train_settings.h"
#include "offload/hyper_groups.h"
#include "offload/plane.h"

namespace spillway::engine {

/// What --optimizer accepts.
[[nodiscard]] const std::vector<std::string>& optimizer_names();
/// Of these, the ones whose elements are updated each by itself.
[[nodiscard]] const std::vector<std::string>& elementwise_optimizer_names();

/// Of these, the ones whose updates the benches measure.
[[nodiscard]] const std::vector<std::string>& measured_optimizer_names();

/// The hyper-parameters of one group in one step. Throws std::invalid_argument on a name that is
/// not in elementwise_optimizer_names().
[[nodiscard]] cpu_optim::HyperParameters hyper_parameters(const TrainSettings& settings,
                                                          double learning_rate,
                                                          double weight_decay);

/// Those of the model's groups, in the order of DecayGroup. Throws std::invalid_argument on a name
/// that is not in optimizer_names().
[[nodiscard]] offload::HyperGroups hyper_groups(const TrainSettings& settings,
                                                double learning_rate);

/// Of these, the first alone: for what is measured without a model.
[[nodiscard]] offload::HyperGroups one_hyper_group(const TrainSettings& settings,
                                                   double learning_rate);

/// What the settings' optimizer needs of memory and of a tensor.
[[nodiscard]] cpu_optim::OptimizerNeeds needs_of(const TrainSettings& settings);

[[nodiscard]] offload::SecondMoments second_moments_of(const TrainSettings& settings);

/// At rest, over all planes.
[[nodiscard]] double rest_bytes_per_parameter(const TrainSettings& settings);

/// The planes that a run with these settings keeps.
[[nodiscard]] offload::PlaneSet planes_of(const TrainSettings& settings);

/// Whether all that it keeps is exact, and what it does (design promise P5).
[[nodiscard]] bool is_exact(const TrainSettings& settings);

}  // namespace spillway::engine
