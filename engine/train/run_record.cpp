// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/run_record.h"

#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/compute/blas_kernels.h"
#include "engine/settings/setting_fields.h"

namespace spillway::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* fingerprint_key = "data_fingerprint";
constexpr const char* kernels_key = "blas_kernels";

Json json_value(const SettingField& field, const TrainSettings& settings) {
    const auto text = field.read(settings);
    switch (field.kind) {
        case JsonKind::number:
        case JsonKind::boolean:
            return Json::parse(text);
        case JsonKind::list: {
            auto list = Json::array();
            for (const auto& file : settings.data)
                list.push_back(file);
            return list;
        }
        case JsonKind::text:
            break;
    }
    return text;
}

Json parse_record(const std::string& record) {
    try {
        auto parsed = Json::parse(record);
        if (parsed.is_object())
            return parsed;
    } catch (const Json::exception& error) {
        throw std::runtime_error(std::string("the run's recorded settings are no JSON: ") +
                                 error.what());
    }
    throw std::runtime_error("the run's recorded settings are no JSON object");
}

/// The recorded value as the field's text; "" if the record has none.
std::string recorded_text(const SettingField& field, const Json& record) {
    const auto found = record.find(key_of_option_name(field.name));
    if (found == record.end())
        return "";
    if (found->is_array()) {
        std::string joined;
        for (const auto& item : *found)
            joined += (joined.empty() ? "" : ",") + item.get<std::string>();
        return joined;
    }
    return found->is_string() ? found->get<std::string>() : found->dump();
}

/// Steps or clock drive the schedule for the run's whole life; within its kind the length is free.
void check_clock(const TrainSettings& settings, const Json& record, const GivenSettings& given,
                 std::vector<std::string>& problems) {
    const bool by_steps = record.value("schedule_steps", std::uint64_t{0}) > 0;
    if (by_steps && (given("budget") || given("replay-progress")))
        problems.push_back(
            fmt::format("--{}: the run's schedule counts updates (--schedule-steps {}), not time; "
                        "go on with --steps",
                        given("budget") ? "budget" : "replay-progress",
                        record.at("schedule_steps").get<std::uint64_t>()));
    if (!by_steps && given("steps"))
        problems.push_back(
            fmt::format("--steps {}: the run's schedule follows the clock; go on with --budget",
                        settings.steps));
}

}  // namespace

std::string make_run_record(const TrainSettings& settings, const std::string& data_fingerprint,
                            const std::string& blas_kernels) {
    auto record = Json::object();
    for (const auto& field : setting_fields()) {
        if (field.scope != SettingScope::placement)
            record[key_of_option_name(field.name)] = json_value(field, settings);
    }
    record[fingerprint_key] = data_fingerprint;
    record[kernels_key] = blas_kernels;
    return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> adopt_run_record(TrainSettings& settings, const std::string& record_text,
                                          const GivenSettings& given) {
    const auto record = parse_record(record_text);
    std::vector<std::string> problems;
    check_clock(settings, record, given, problems);
    const bool length_given = given("steps") || given("budget") || given("replay-progress");
    for (const auto& field : setting_fields()) {
        const auto recorded = recorded_text(field, record);
        if (field.scope == SettingScope::placement || recorded.empty())
            continue;
        const bool is_length =
            field.name == "steps" || field.name == "budget" || field.name == "replay-progress";
        if (!given(field.name) && !(is_length && length_given)) {
            field.write(settings, recorded);
            continue;
        }
        if (field.scope != SettingScope::run || field.name == "data")
            continue;
        // Through the field, so that one value has one text.
        TrainSettings run;
        field.write(run, recorded);
        if (const auto found = field.read(settings); found != field.read(run))
            problems.push_back(fmt::format(
                "--{} {}: the run was started with {}, which is fixed; leave it out, or start a "
                "new run in another folder",
                field.name, found, recorded));
    }
    return problems;
}

std::string data_problem(const std::string& record, const std::string& data_fingerprint) {
    const auto recorded = parse_record(record).value(fingerprint_key, std::string());
    if (recorded == data_fingerprint)
        return "";
    return fmt::format(
        "--data: the files hold other bytes (fingerprint {}) than the run was started with ({}); "
        "name the run's files, or start a new run in another folder",
        data_fingerprint, recorded);
}

std::string kernels_warning(const std::string& record, const std::string& blas_kernels) {
    const auto recorded = parse_record(record).value(kernels_key, std::string());
    if (recorded.empty() || recorded == blas_kernels)
        return "";
    return fmt::format(
        "the run's products were made by OpenBLAS's kernels for {}, here they are made by those "
        "for "
        "{}: it goes on, with other last bits than there ({}={} takes the former, where the "
        "processor can run them)",
        recorded, blas_kernels, blas_kernels_variable, recorded);
}

std::string settings_json(const TrainSettings& settings) {
    auto all = Json::object();
    for (const auto& field : setting_fields())
        all[key_of_option_name(field.name)] = json_value(field, settings);
    return all.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace spillway::engine
