// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/stored_tuning.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "offload/element_order.h"

namespace spillway::engine {

const StoredTuning* find_tuning(std::span<const StoredTuning> tunings, const TuningKey& key) {
    const auto found = std::ranges::find(tunings, key, &StoredTuning::key);
    return found == tunings.end() ? nullptr : &*found;
}

nlohmann::json json_of(const StoredTuning& tuning) {
    const auto& key = tuning.key;
    nlohmann::json values;
    for (const auto& field : tuning_fields)
        values[std::string(field.key)] = tuning.values.*field.member;
    return {{"cpu", key.cpu},
            {"isa", key.isa},
            {"threads", key.threads},
            {"device", key.device},
            {"file_system", key.file_system},
            {"drive_io", key.drive_io},
            {"optimizer", key.optimizer},
            {"state", key.state},
            {"host_bytes", key.host_bytes},
            {"measured_unix_s", tuning.measured_unix_s},
            {"values", values},
            {"gain", tuning.gain}};
}

namespace {

/// No number of the kind: one that no field may have.
std::uint64_t number_of(const nlohmann::json& value) {
    return value.is_number_unsigned() ? value.get<std::uint64_t>()
                                      : std::numeric_limits<std::uint64_t>::max();
}

}  // namespace

StoredTuning stored_tuning_of(const nlohmann::json& object) {
    StoredTuning tuning;
    tuning.key = {.cpu = object.at("cpu").get<std::string>(),
                  .isa = object.at("isa").get<std::string>(),
                  .threads = object.at("threads").get<std::size_t>(),
                  .device = object.at("device").get<std::string>(),
                  .file_system = object.at("file_system").get<std::string>(),
                  .drive_io = object.at("drive_io").get<std::string>(),
                  .optimizer = object.at("optimizer").get<std::string>(),
                  .state = object.at("state").get<std::string>(),
                  .host_bytes = object.at("host_bytes").get<std::size_t>()};
    tuning.measured_unix_s = object.at("measured_unix_s").get<std::int64_t>();
    for (const auto& field : tuning_fields)
        tuning.values.*field.member = number_of(object.at("values").at(std::string(field.key)));
    tuning.gain = object.at("gain").get<double>();
    return tuning;
}

std::string problem_of(const StoredTuning& tuning) {
    constexpr std::uint64_t most_chunk_bytes = std::uint64_t{1} << 30;
    constexpr std::uint64_t chunk_unit_bytes = offload::tile_elements * sizeof(float);
    constexpr std::uint64_t block_unit_bytes = 4096;
    constexpr double most_gain = 1000;
    const auto& values = tuning.values;
    const bool can_be_true =
        values.chunk_bytes % chunk_unit_bytes == 0 && values.chunk_bytes <= most_chunk_bytes &&
        values.update_window <= offload::most_window &&
        values.weight_window <= offload::most_window &&
        values.io_block_bytes % block_unit_bytes == 0 &&
        values.io_block_bytes <= most_io_block_bytes && values.io_depth <= most_io_depth &&
        values.update_threads <= tuning.key.threads && tuning.gain >= 1 && tuning.gain <= most_gain;
    if (can_be_true)
        return "";
    std::string text;
    for (const auto& field : tuning_fields)
        text += fmt::format("{} {}, ", field.key, values.*field.member);
    return fmt::format("{}a gain of {}", text, tuning.gain);
}

}  // namespace spillway::engine
