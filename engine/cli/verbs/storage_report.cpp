// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/storage_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/train/train_report.h"

namespace spillway::engine {

namespace {

using Json = nlohmann::ordered_json;
using nvme::StorageBenchResult;
using nvme::StorageBenchRow;

std::string rate(double bytes_per_s) {
    return fmt::format("{:.3f}", bytes_per_s * 1e-9);
}

std::vector<std::string> lines_of(const StorageBenchResult& result) {
    std::vector<std::string> lines;
    lines.push_back(fmt::format("{:<6} {:<9} {:>9} {:>6} {:>8} {:>10} {:>10} {:>9}", "", "backend",
                                "block", "depth", "GB/s", "p50 us", "p99 us", "cpu s/GB"));
    for (const StorageBenchRow& row : result.rows) {
        lines.push_back(fmt::format("{:<6} {:<9} {:>9} {:>6} {:>8} {:>10.1f} {:>10.1f} {:>9.4f}",
                                    nvme::name_of(row.traffic), row.backend,
                                    human_bytes(row.block_bytes), row.depth, rate(row.bytes_per_s),
                                    row.p50_us, row.p99_us, row.cpu_s_per_gb));
        if (row.settling)
            lines.push_back(fmt::format(
                "       burst {} GB/s, sustained {} GB/s{}", rate(row.settling->burst_bytes_per_s),
                rate(row.settling->sustained_bytes_per_s),
                row.settling->settled ? ""
                                      : "; the rate has not settled, a longer --time tells more"));
    }
    for (const auto& drive : result.drives)
        lines.push_back(fmt::format(
            "{}: {}, {:.1f} % of the file in the page cache at the end", drive.folder.string(),
            drive.is_direct ? "direct I/O" : "no direct I/O, the rates are those of the page cache",
            100 * drive.cached_fraction));
    if (!result.interrupted)
        lines.push_back(
            fmt::format("verified {}: all as written", human_bytes(result.verified_bytes)));
    for (const std::string& note : result.notes)
        lines.push_back("note: " + note);
    return lines;
}

Json json_of(const StorageBenchRow& row) {
    Json json{{"direction", nvme::name_of(row.traffic)},
              {"backend", row.backend},
              {"block_bytes", row.block_bytes},
              {"depth", row.depth},
              {"bytes_per_s", row.bytes_per_s},
              {"p50_us", row.p50_us},
              {"p99_us", row.p99_us},
              {"cpu_s_per_gb", row.cpu_s_per_gb},
              {"moved_bytes", row.moved_bytes},
              {"wall_s", row.wall_s}};
    if (row.settling) {
        json["burst_bytes_per_s"] = row.settling->burst_bytes_per_s;
        json["sustained_bytes_per_s"] = row.settling->sustained_bytes_per_s;
        json["settled"] = row.settling->settled;
    }
    return json;
}

Json json_of(const StorageBenchResult& result) {
    Json root{{"rows", Json::array()}, {"drives", Json::array()}};
    for (const StorageBenchRow& row : result.rows)
        root["rows"].push_back(json_of(row));
    for (const auto& drive : result.drives)
        root["drives"].push_back({{"folder", drive.folder.string()},
                                  {"file_bytes", drive.file_bytes},
                                  {"is_direct", drive.is_direct},
                                  {"cached_fraction", drive.cached_fraction}});
    root["verified_bytes"] = result.verified_bytes;
    root["notes"] = result.notes;
    root["interrupted"] = result.interrupted;
    return root;
}

Json json_of(const StorageReport::Tuned& tuned) {
    const auto& settings = tuned.settings;
    return {{"folder", tuned.folder.string()},
            {"file_system", settings.file_system},
            {"backend", settings.backend},
            {"operation_bytes", settings.operation_bytes},
            {"depth", settings.depth},
            {"read_bytes_per_s", settings.rates.read_bytes_per_s},
            {"write_bytes_per_s", settings.rates.write_bytes_per_s},
            {"mixed_bytes_per_s", settings.rates.mixed_bytes_per_s}};
}

}  // namespace

void StorageReport::add(const StorageBenchResult& more) {
    measured.rows.insert(measured.rows.end(), more.rows.begin(), more.rows.end());
    measured.drives.insert(measured.drives.end(), more.drives.begin(), more.drives.end());
    measured.notes.insert(measured.notes.end(), more.notes.begin(), more.notes.end());
    measured.verified_bytes += more.verified_bytes;
    measured.interrupted = measured.interrupted || more.interrupted;
}

std::vector<std::string> storage_report_lines(const StorageReport& report) {
    auto lines = lines_of(report.measured);
    for (const auto& [folder, settings] : report.tuned)
        lines.push_back(fmt::format("{}: best with {}, blocks of {}, depth {}; kept in {}",
                                    folder.string(), settings.backend,
                                    human_bytes(settings.operation_bytes), settings.depth,
                                    report.profile.string()));
    return lines;
}

std::string storage_report_json(const StorageReport& report) {
    auto root = json_of(report.measured);
    if (!report.tuned.empty()) {
        root["profile"] = report.profile.string();
        for (const auto& each : report.tuned)
            root["tuned"].push_back(json_of(each));
    }
    return root.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace spillway::engine
