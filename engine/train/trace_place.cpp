// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/trace_place.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "engine/measure/drive_choice.h"
#include "engine/train/metrics_log.h"
#include "nvme/links.h"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

/// Without links and parts that lead back, as far as it can be looked at.
fs::path resolved(const fs::path& path) {
    try {
        return fs::weakly_canonical(nvme::behind_links(path));
    } catch (const std::system_error&) {  // whoever opens it says what is wrong
        return path;
    }
}

bool is_same_file(const fs::path& one, const fs::path& other) {
    std::error_code ignored;
    return resolved(one) == resolved(other) || fs::equivalent(one, other, ignored);
}

/// By what the user knows them.
std::vector<std::pair<std::string, fs::path>> other_files(const TrainSettings& settings) {
    std::vector<std::pair<std::string, fs::path>> files;
    if (settings.json != "-")
        files.emplace_back("--json", settings.json);
    for (const auto& file : settings.data)
        files.emplace_back("--data", file);
    files.emplace_back("--replay-progress", settings.replay_progress);
    files.emplace_back(settings.profile.empty() ? "the machine's profile" : "--profile",
                       profile_path(settings));
    if (!settings.out.empty())
        files.emplace_back("the run's log", settings.out / MetricsLog::file_name);
    return files;
}

}  // namespace

std::vector<std::string> trace_problems(const TrainSettings& settings) {
    std::vector<std::string> problems;
    if (settings.trace.empty())
        return problems;
    for (const auto& [what, file] : other_files(settings)) {
        if (!file.empty() && is_same_file(settings.trace, file))
            problems.push_back(fmt::format("--trace {} and {} {} are one file; name two",
                                           settings.trace.string(), what, file.string()));
    }
    return problems;
}

}  // namespace spillway::engine
