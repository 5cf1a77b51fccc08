// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/storage_tuner.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

namespace spillway::nvme {

namespace {

constexpr double near_enough = 1.03;
constexpr std::array traffics = {StorageTraffic::write, StorageTraffic::read,
                                 StorageTraffic::mixed};

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Of one backend, block and depth.
struct Tried {
    std::map<StorageTraffic, std::vector<double>> rates;
    std::map<StorageTraffic, std::vector<double>> costs;

    [[nodiscard]] bool is_whole() const { return rates.size() == traffics.size(); }
};

StorageSettings settings_of(const std::string& backend, std::size_t block_bytes, std::size_t depth,
                            const Tried& tried) {
    StorageSettings settings{backend, block_bytes, depth};
    settings.read_bytes_per_s = median(tried.rates.at(StorageTraffic::read));
    settings.write_bytes_per_s = median(tried.rates.at(StorageTraffic::write));
    settings.mixed_bytes_per_s = median(tried.rates.at(StorageTraffic::mixed));
    for (const auto traffic : traffics)
        settings.cpu_s_per_gb +=
            median(tried.costs.at(traffic)) / static_cast<double>(traffics.size());
    return settings;
}

/// Seconds that a step of one byte read and one written is bound by.
double bound_s(const StorageSettings& settings) {
    return std::max({1 / settings.read_bytes_per_s, 1 / settings.write_bytes_per_s,
                     2 / settings.mixed_bytes_per_s});
}

/// Adds what another bench brought.
void append(StorageBenchResult& to, StorageBenchResult from) {
    std::move(from.rows.begin(), from.rows.end(), std::back_inserter(to.rows));
    for (std::string& note : from.notes)
        if (std::find(to.notes.begin(), to.notes.end(), note) == to.notes.end())
            to.notes.push_back(std::move(note));
    to.drives = std::move(from.drives);
    to.verified_bytes += from.verified_bytes;
    to.interrupted = to.interrupted || from.interrupted;
}

}  // namespace

std::optional<StorageSettings> best_settings(std::span<const StorageBenchRow> rows) {
    std::map<std::tuple<std::string, std::size_t, std::size_t>, Tried> tried;
    for (const StorageBenchRow& row : rows) {
        Tried& one = tried[{row.backend, row.block_bytes, row.depth}];
        one.rates[row.traffic].push_back(row.bytes_per_s);
        one.costs[row.traffic].push_back(row.cpu_s_per_gb);
    }
    std::vector<StorageSettings> candidates;
    for (const auto& [key, one] : tried)
        if (one.is_whole())
            candidates.push_back(
                settings_of(std::get<0>(key), std::get<1>(key), std::get<2>(key), one));
    if (candidates.empty())
        return std::nullopt;
    double least_s = bound_s(candidates.front());
    for (const StorageSettings& one : candidates)
        least_s = std::min(least_s, bound_s(one));
    std::erase_if(candidates,
                  [&](const StorageSettings& one) { return bound_s(one) > least_s * near_enough; });
    return *std::min_element(candidates.begin(), candidates.end(),
                             [](const StorageSettings& a, const StorageSettings& b) {
                                 return a.cpu_s_per_gb < b.cpu_s_per_gb;
                             });
}

StorageTuning tune_storage(const std::filesystem::path& folder, std::uint64_t file_bytes,
                           double time_limit_s, const std::function<bool()>& stop) {
    StorageBenchOptions options;
    options.folders = {folder};
    options.file_bytes = file_bytes;
    options.time_limit_s = time_limit_s / 4;
    options.rounds = 2;
    options.most_parts_to_settle = 0;  // every setting gets the same time
    options.stop = stop;
    options.backends = {BackendKind::threads};
    if (io_uring_refusal().empty())
        options.backends.push_back(BackendKind::io_uring);
    if (libaio_refusal().empty())
        options.backends.push_back(BackendKind::libaio);
    StorageTuning tuning;
    tuning.measured = run_storage_bench(options);
    tuning.best = best_settings(tuning.measured.rows);
    if (!tuning.best || stop())
        return tuning;
    options.backends = {*backend_kind(tuning.best->backend)};
    options.block_bytes.clear();
    for (const std::size_t block :
         {std::size_t{256} << 10, std::size_t{1} << 20, std::size_t{4} << 20})
        if (block <= file_bytes / 32)
            options.block_bytes.push_back(block);
    options.depths = {8, 16, 32};
    options.time_limit_s = time_limit_s * 3 / 4;
    append(tuning.measured, run_storage_bench(options));
    tuning.best = best_settings(tuning.measured.rows);
    return tuning;
}

}  // namespace spillway::nvme
