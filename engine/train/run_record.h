// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/settings/train_settings.h"

namespace spillway::engine {

/// The settings that a run is created with and a resume starts from, as a JSON object: every field
/// whose scope is `run` or `length`, `data_fingerprint`, and `blas_kernels`, the name of the
/// library's kernels that made its products. It stands in the run's manifest.
[[nodiscard]] std::string make_run_record(const TrainSettings& settings,
                                          const std::string& data_fingerprint,
                                          const std::string& blas_kernels);

/// Whether the user gave a setting, by its name.
using GivenSettings = std::function<bool(std::string_view name)>;

/// Fills what was not given from the record, and returns one sentence for every setting fixed by
/// the run that was given with another value: its name, the value found, the run's value. The
/// paths of `data` may change, its bytes not: see data_problem(). A record that cannot be read is a
/// std::runtime_error.
[[nodiscard]] std::vector<std::string> adopt_run_record(TrainSettings& settings,
                                                        const std::string& record,
                                                        const GivenSettings& given);

/// "" if the data are the run's, else a sentence.
[[nodiscard]] std::string data_problem(const std::string& record,
                                       const std::string& data_fingerprint);

/// "" if products are made by the kernels that the run began with, or if those are not known; else
/// a sentence: other kernels add up in another order, so that the run goes on with other bits than
/// it would have had.
[[nodiscard]] std::string kernels_warning(const std::string& record,
                                          const std::string& blas_kernels);

/// All settings as a JSON object, keys as in a configuration file: it can be used as one.
[[nodiscard]] std::string settings_json(const TrainSettings& settings);

}  // namespace spillway::engine
