// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/cli/backend_option.h"
#include "engine/cli/nearest.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/units.h"
#include "engine/cli/verbs/bench.h"
#include "engine/cli/verbs/storage_report.h"
#include "engine/measure/profile.h"
#include "engine/train/stop_request.h"
#include "engine/train/train_report.h"
#include "nvme/storage_bench.h"
#include "nvme/storage_tuner.h"

namespace spillway::engine {

namespace {

namespace fs = std::filesystem;
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
    bool tune = false;
    fs::path profile;
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
    options.add({"time", "TIME",
                 "for all rows together; filling the files is extra, and so are writes until their "
                 "rate settles, up to three times",
                 "8s"},
                given.time);
    options.add({"tune", "",
                 "find the best backend, block and depth of each folder's drive and keep them in "
                 "the profile",
                 ""},
                given.tune);
    options.add({"profile", "FILE", "with --tune: where they are kept",
                 "$XDG_CACHE_HOME/spillway/profile.json"},
                given.profile);
    add_json_option(options, given.json);
}

/// What --tune chooses itself, and what it needs.
void check_tuning(const OptionSet& options, Given& given) {
    std::vector<std::string> problems;
    for (const char* name : {"block", "depth", "only", "backend"})
        if (given.tune && options.given(name))
            problems.push_back(
                fmt::format("--tune finds the best --{} itself: leave it out", name));
    if (!given.tune && options.given("profile"))
        problems.emplace_back("--profile is written by --tune alone");
    if (given.tune && !options.given("time"))
        given.time = "24s";
    if (given.tune && given.profile.empty())
        given.profile = default_profile_path();
    if (given.tune && given.profile.empty())
        problems.emplace_back("there is no home for a profile: name one by --profile FILE");
    try {
        if (problems.empty() && given.tune && options.given("profile"))
            check_profile_path(given.profile);
    } catch (const std::invalid_argument& error) {
        problems.push_back(fmt::format("--profile: {}", error.what()));
    }
    if (!problems.empty())
        throw UsageError(problems);
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

/// Each folder's drive by itself; what is found is kept at once.
StorageReport tune_drives(const nvme::StorageBenchOptions& wanted, const fs::path& profile) {
    StorageReport report;
    const double limit_s = wanted.time_limit_s / static_cast<double>(wanted.folders.size());
    for (const fs::path& folder : wanted.folders) {
        const auto tuning = nvme::tune_storage(folder, wanted.file_bytes, limit_s, wanted.stop);
        report.add(tuning.measured);
        if (!tuning.best || report.measured.interrupted)
            break;
        const auto& best = *tuning.best;
        const DriveSettings settings{
            file_system_identity(folder),
            static_cast<std::int64_t>(std::time(nullptr)),
            best.backend,
            best.block_bytes,
            best.depth,
            {best.read_bytes_per_s, best.write_bytes_per_s, best.mixed_bytes_per_s}};
        store_drive_settings(profile, settings);
        report.tuned.push_back({folder, settings});
        report.profile = profile;
    }
    return report;
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
    check_tuning(options, given);
    nvme::StorageBenchOptions wanted = options_of(given);
    const StopRequest stop;
    wanted.stop = [&] { return stop.requested(); };
    console.line(fmt::format("filling and measuring a file of {} in each folder",
                             human_bytes(wanted.file_bytes)));
    StorageReport report;
    if (given.tune) {
        report = tune_drives(wanted, given.profile);
    } else {
        report.measured = nvme::run_storage_bench(wanted);
    }
    for (const std::string& line : storage_report_lines(report))
        console.line(line);
    if (!given.json.empty())
        console.write_json(storage_report_json(report), given.json);
    if (!report.measured.interrupted)
        return as_int(ExitCode::done);
    console.line("interrupted; the files are gone");
    return as_int(ExitCode::interrupted);
}

}  // namespace spillway::engine
