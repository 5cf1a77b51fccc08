// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/metrics_log.h"

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

namespace spillway::engine {
namespace {

using Json = nlohmann::ordered_json;

/// Bytes of the whole lines of steps up to `iteration`, from the start of the file on.
std::uintmax_t kept_bytes(const std::filesystem::path& path, std::uint64_t iteration) {
    std::ifstream file(path, std::ios::binary);
    std::uintmax_t kept = 0;
    for (std::string line; std::getline(file, line) && !file.eof();) {
        const auto parsed = Json::parse(line, nullptr, false);
        if (!parsed.is_object() || !parsed.contains("iteration") ||
            !parsed["iteration"].is_number_unsigned() ||
            parsed["iteration"].get<std::uint64_t>() > iteration)
            break;
        kept += line.size() + 1;
    }
    return kept;
}

}  // namespace

LoggedEnd logged_end(const std::filesystem::path& folder) {
    std::ifstream file(folder / MetricsLog::file_name, std::ios::binary);
    std::string last;
    for (std::string line; std::getline(file, line) && !file.eof();)
        last = std::move(line);
    const auto parsed = Json::parse(last, nullptr, false);
    if (!parsed.is_object() || !parsed.contains("iteration") || !parsed.contains("elapsed_s") ||
        !parsed["iteration"].is_number_unsigned() || !parsed["elapsed_s"].is_number())
        return {};
    return {parsed["iteration"].get<std::uint64_t>(), parsed["elapsed_s"].get<double>()};
}

MetricsLog::MetricsLog(const std::filesystem::path& folder, std::uint64_t iteration)
    : path_(folder / file_name) {
    if (std::filesystem::exists(path_))
        std::filesystem::resize_file(path_, kept_bytes(path_, iteration));
    file_.open(path_, std::ios::binary | std::ios::app);
    if (!file_)
        throw std::system_error(errno, std::generic_category(), "cannot write " + path_.string());
}

void MetricsLog::append(const StepMetrics& metrics) {
    // Numbers that are not finite are written as null by the library.
    Json line{{"iteration", metrics.iteration},
              {"update", metrics.update},
              {"loss", metrics.loss},
              {"lr", metrics.learning_rate},
              {"grad_norm", metrics.gradient_norm},
              {"skipped", metrics.skipped},
              {"tokens_per_s", metrics.tokens_per_s},
              {"step_s", metrics.step_s},
              {"elapsed_s", metrics.elapsed_s}};
    if (metrics.progress)
        line["progress"] = *metrics.progress;
    if (metrics.evaluation_loss)
        line["loss_eval"] = *metrics.evaluation_loss;
    if (metrics.averaged_loss)
        line["loss_eval_average"] = *metrics.averaged_loss;
    file_ << line.dump() << '\n' << std::flush;
    if (!file_)
        throw std::system_error(EIO, std::generic_category(), "cannot write " + path_.string());
}

}  // namespace spillway::engine
