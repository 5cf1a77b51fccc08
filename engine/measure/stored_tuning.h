// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "engine/settings/tuning.h"

namespace spillway::engine {

/// What a search's outcome depends on: a run with other values here has another best tuning.
struct TuningKey {
    std::string cpu;          ///< as the kernel names the model
    std::string isa;          ///< of the kernels
    std::size_t threads = 0;  ///< of the run
    std::string device;       ///< as in ProfileKey
    std::string file_system;  ///< of the NVMe tier's folders, each
    std::string drive_io;     ///< how those are driven where the tuning does not say
    std::string optimizer;
    std::string state;           ///< format of the moments
    std::size_t host_bytes = 0;  ///< of the run's budget, to a power of two
    friend bool operator==(const TuningKey&, const TuningKey&) = default;
};

/// What a search found.
struct StoredTuning {
    TuningKey key;
    std::int64_t measured_unix_s = 0;
    Tuning values;    ///< that are not the defaults; all 0: nothing is clearly faster than those
    double gain = 1;  ///< a step by the defaults over one by these, medians of pairs
    friend bool operator==(const StoredTuning&, const StoredTuning&) = default;
};

/// nullptr if there was no search with that key.
[[nodiscard]] const StoredTuning* find_tuning(std::span<const StoredTuning> tunings,
                                              const TuningKey& key);

[[nodiscard]] nlohmann::json json_of(const StoredTuning& tuning);
/// What is wrong with values that no search gives; "" if nothing is.
[[nodiscard]] std::string problem_of(const StoredTuning& tuning);
/// Throws nlohmann::json::exception on another shape.
[[nodiscard]] StoredTuning stored_tuning_of(const nlohmann::json& object);

}  // namespace spillway::engine
