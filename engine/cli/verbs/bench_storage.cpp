// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/cli/backend_option.h"
#include "engine/cli/nearest.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/units.h"
#include "engine/cli/verbs/bench.h"
#include "engine/train/stop_request.h"
#include "engine/train/train_report.h"
#include "nvme/storage_bench.h"

namespace spillway::engine {

namespace {

using Json = nlohmann::ordered_json;
using nvme::StorageBenchResult;
using nvme::StorageBenchRow;
using nvme::StorageTraffic;

/// As given, lists still texts.
struct Given {
    std::vector<std::string> folders;
    std::uint64_t file_bytes = std::uint64_t{512} << 20;
    std::vector<std::string> blocks{"1MiB"};
    std::vector<std::string> depths{"32"};
    std::vector<std::string> only{"write", "read", "mixed"};
    std::vector<std::string> backends{"auto"};
    std::string time = "8s";
    std::string json;
};

void declare(OptionSet& options, Given& given) {
    options.add({"dir", "DIR[,DIR]", "folders on the drives to measure, all at once; needed", ""},
                given.folders);
    options.add_bytes({"size", "BYTES", "of the file made in each folder", "512MiB"},
                      given.file_bytes);
    options.add({"block", "BYTES[,BYTES]", "of one operation", "1MiB"}, given.blocks);
    options.add({"depth", "N[,N]", "operations in flight on each drive", "32"}, given.depths);
    options.add({"only", "WHAT[,WHAT]", "of write, read, mixed", "write,read,mixed"}, given.only);
    options.add({"backend", "NAME[,NAME]", "of auto, io_uring, libaio, threads", "auto"},
                given.backends);
    options.add({"time", "TIME", "for all rows together; filling the files is extra", "8s"},
                given.time);
    add_json_option(options, given.json);
}

std::size_t parse_depth(const std::string& text) {
    std::size_t depth = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), depth);
    if (error != std::errc() || end != text.data() + text.size())
        throw std::invalid_argument(fmt::format("\"{}\" is not a whole number", text));
    return depth;
}

[[noreturn]] void refuse_choice(const std::string& text, const std::vector<std::string>& choices) {
    throw std::invalid_argument(fmt::format("\"{}\" is not one of {}{}", text,
                                            fmt::join(choices, ", "),
                                            suggestion(text, choices, "")));
}

StorageTraffic parse_traffic(const std::string& text) {
    for (const auto traffic : {StorageTraffic::read, StorageTraffic::write, StorageTraffic::mixed})
        if (text == nvme::name_of(traffic))
            return traffic;
    refuse_choice(text, {"write", "read", "mixed"});
}

nvme::BackendKind parse_backend(const std::string& text) {
    const auto choices = backend_choices();
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
        refuse_choice(text, choices);
    return backend_kind(text);
}

/// Parses one option's values; what is wrong goes to `problems` with the option's name before it.
template <class Parse>
auto parse_all(const char* option, const std::vector<std::string>& texts, Parse parse,
               std::vector<std::string>& problems) {
    std::vector<decltype(parse(texts.front()))> values;
    for (const std::string& text : texts) {
        try {
            values.push_back(parse(text));
        } catch (const std::invalid_argument& error) {
            problems.push_back(fmt::format("--{}: {}", option, error.what()));
        }
    }
    return values;
}

nvme::StorageBenchOptions options_of(const Given& given) {
    std::vector<std::string> problems;
    nvme::StorageBenchOptions options;
    options.folders.assign(given.folders.begin(), given.folders.end());
    options.file_bytes = given.file_bytes;
    options.block_bytes = parse_all(
        "block", given.blocks,
        [](const std::string& text) { return std::size_t{parse_size_bytes(text)}; }, problems);
    options.depths = parse_all("depth", given.depths, parse_depth, problems);
    options.traffics = parse_all("only", given.only, parse_traffic, problems);
    options.backends = parse_all("backend", given.backends, parse_backend, problems);
    const auto times = parse_all("time", {given.time}, parse_duration_s, problems);
    if (!times.empty())
        options.time_limit_s = times.front();
    if (given.folders.empty())
        problems.emplace_back(
            "bench storage needs a folder on the drive: `spillway bench storage --dir DIR`");
    if (problems.empty())
        problems = nvme::problems_of(options);
    if (!problems.empty())
        throw UsageError(problems);
    return options;
}

std::string rate(double bytes_per_s) {
    return fmt::format("{:.3f}", bytes_per_s * 1e-9);
}

void show(const StorageBenchResult& result, Console& console) {
    console.line(fmt::format("{:<6} {:<9} {:>9} {:>6} {:>8} {:>10} {:>10} {:>9}", "", "backend",
                             "block", "depth", "GB/s", "p50 us", "p99 us", "cpu s/GB"));
    for (const StorageBenchRow& row : result.rows) {
        console.line(fmt::format("{:<6} {:<9} {:>9} {:>6} {:>8} {:>10.1f} {:>10.1f} {:>9.4f}",
                                 nvme::name_of(row.traffic), row.backend,
                                 human_bytes(row.block_bytes), row.depth, rate(row.bytes_per_s),
                                 row.p50_us, row.p99_us, row.cpu_s_per_gb));
        if (row.settling)
            console.line(fmt::format(
                "       burst {} GB/s, sustained {} GB/s{}", rate(row.settling->burst_bytes_per_s),
                rate(row.settling->sustained_bytes_per_s),
                row.settling->settled ? ""
                                      : "; the rate has not settled, a longer --time tells more"));
    }
    for (const auto& drive : result.drives)
        console.line(fmt::format(
            "{}: {}, {:.1f} % of the file in the page cache at the end", drive.folder.string(),
            drive.is_direct ? "direct I/O" : "no direct I/O, the rates are those of the page cache",
            100 * drive.cached_fraction));
    if (!result.interrupted)
        console.line(
            fmt::format("verified {}: all as written", human_bytes(result.verified_bytes)));
    for (const std::string& note : result.notes)
        console.line("note: " + note);
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

}  // namespace

int run_bench_storage(std::span<const std::string> arguments, Console& console) {
    Given given;
    OptionSet options(
        "bench storage",
        "Measures reads and writes of the drive under a folder, past the page cache.");
    declare(options, given);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    nvme::StorageBenchOptions wanted = options_of(given);
    const StopRequest stop;
    wanted.stop = [&] { return stop.requested(); };
    console.line(fmt::format("filling and measuring a file of {} in each folder",
                             human_bytes(wanted.file_bytes)));
    const StorageBenchResult result = nvme::run_storage_bench(wanted);
    show(result, console);
    if (!given.json.empty())
        console.write_json(json_of(result).dump(2, ' ', false, Json::error_handler_t::replace),
                           given.json);
    if (!result.interrupted)
        return as_int(ExitCode::done);
    console.line("interrupted; the files are gone");
    return as_int(ExitCode::interrupted);
}

}  // namespace spillway::engine
