// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/train_result.h"

#include <stdexcept>

#include <nlohmann/json.hpp>

namespace spillway::engine {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
}

}  // namespace

CommitCost commit_cost(const offload::OffloadStatistics& from,
                       const offload::OffloadStatistics& to) {
    return {.commits = to.commits - from.commits,
            .bytes = to.commit_bytes - from.commit_bytes,
            .wall_s = to.commit_wall_s - from.commit_wall_s,
            .write_s = to.commit_write_s - from.commit_write_s,
            .flush_s = to.commit_flush_s - from.commit_flush_s,
            .exposed_s = to.stall.commit - from.stall.commit};
}

std::string to_client_state(const RunProgress& progress) {
    return Json{{"iteration", progress.iteration},
                {"tokens", progress.tokens},
                {"skipped_steps", progress.skipped_steps},
                {"consecutive_skips", progress.consecutive_skips},
                {"elapsed_s", progress.elapsed_s},
                {"first_loss", or_null(progress.first_loss)},
                {"last_loss", or_null(progress.last_loss)}}
        .dump();
}

RunProgress parse_client_state(const std::string& text) {
    try {
        const auto json = Json::parse(text);
        RunProgress progress;
        json.at("iteration").get_to(progress.iteration);
        json.at("tokens").get_to(progress.tokens);
        json.at("skipped_steps").get_to(progress.skipped_steps);
        json.at("consecutive_skips").get_to(progress.consecutive_skips);
        json.at("elapsed_s").get_to(progress.elapsed_s);
        if (!json.at("first_loss").is_null())
            progress.first_loss = json["first_loss"].get<double>();
        if (!json.at("last_loss").is_null())
            progress.last_loss = json["last_loss"].get<double>();
        return progress;
    } catch (const Json::exception& error) {
        throw std::runtime_error(std::string("the commit's progress cannot be read: ") +
                                 error.what());
    }
}

}  // namespace spillway::engine
