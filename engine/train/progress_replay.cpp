// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/progress_replay.h"

#include <fstream>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/interop/input_file.h"

namespace spillway::engine {
namespace {

using Json = nlohmann::json;

double progress_of_line(const std::string& line, std::uint64_t iteration, double least) {
    const auto object = Json::parse(line, nullptr, false);
    if (!object.is_object())
        throw std::runtime_error("is no JSON object");
    const auto number = object.find("iteration");
    if (number == object.end() || *number != iteration)
        throw std::runtime_error(fmt::format("has iteration {}, but {} is next",
                                             number == object.end() ? "none" : number->dump(),
                                             iteration));
    const auto progress = object.find("progress");
    if (progress == object.end() || !progress->is_number())
        throw std::runtime_error("has no progress; the run was not made with a time budget");
    const double value = progress->get<double>();
    if (!(value >= least && value <= 1))
        throw std::runtime_error(fmt::format(
            "has progress {}; it must be from {}, that of the line before, to 1", value, least));
    return value;
}

}  // namespace

ProgressReplay::ProgressReplay(const std::filesystem::path& log) {
    std::error_code ignored;
    const auto type = std::filesystem::status(log, ignored).type();
    // Asked before it is opened: a pipe would be waited for, a device may never end.
    if (type != std::filesystem::file_type::regular)
        throw std::runtime_error(fmt::format("progress log {}: cannot be read: it {}", log.string(),
                                             kind_of_file(type)));
    std::ifstream file(log, std::ios::binary);
    if (!file)
        throw std::runtime_error(fmt::format("progress log {}: cannot be read", log.string()));
    std::string line;
    while (std::getline(file, line) && !file.eof()) {
        try {
            progress_.push_back(progress_of_line(line, progress_.size() + 1,
                                                 progress_.empty() ? 0.0 : progress_.back()));
        } catch (const std::runtime_error& error) {
            throw std::runtime_error(fmt::format("progress log {}: line {} {}", log.string(),
                                                 progress_.size() + 1, error.what()));
        }
    }
    if (file.bad())
        throw std::runtime_error(fmt::format("progress log {}: reading it failed", log.string()));
    if (progress_.empty())
        throw std::runtime_error(fmt::format("progress log {}: holds no step", log.string()));
}

double ProgressReplay::progress(std::uint64_t iteration) const {
    if (iteration >= progress_.size())
        throw std::out_of_range(fmt::format("progress log: step {} is asked for, it holds {}",
                                            iteration + 1, progress_.size()));
    return progress_[iteration];
}

}  // namespace spillway::engine
