// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/clean.h"

#include <filesystem>
#include <iostream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/train/train_report.h"
#include "offload/state_folder.h"

namespace spillway::engine {

namespace {

enum class Removal { wanted, not_wanted };

/// Only a person at a terminal is asked.
Removal ask(Console& console, std::size_t count) {
    if (::isatty(STDIN_FILENO) == 0) {
        console.line("nothing was removed; give --yes to remove what is listed");
        return Removal::not_wanted;
    }
    console.line(fmt::format("remove {} entries? [y/N]", count));
    std::string answer;
    std::getline(std::cin, answer);
    return answer == "y" || answer == "Y" || answer == "yes" ? Removal::wanted
                                                             : Removal::not_wanted;
}

std::string report_json(const std::vector<offload::Leftover>& leftovers, Removal removal) {
    nlohmann::ordered_json root{{"removed", removal == Removal::wanted},
                                {"leftovers", nlohmann::ordered_json::array()}};
    for (const auto& leftover : leftovers)
        root["leftovers"].push_back({{"path", leftover.path.string()},
                                     {"bytes", leftover.bytes},
                                     {"reason", leftover.reason}});
    return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void list(const std::vector<offload::Leftover>& leftovers, const std::filesystem::path& folder,
          Console& console) {
    std::uint64_t bytes = 0;
    for (const auto& leftover : leftovers) {
        bytes += leftover.bytes;
        console.line(fmt::format("{:>10}  {}: {}", human_bytes(leftover.bytes),
                                 leftover.path.string(), leftover.reason));
    }
    console.line(leftovers.empty()
                     ? fmt::format("dead runs left nothing in {}", folder.string())
                     : fmt::format("{} entries, {}", leftovers.size(), human_bytes(bytes)));
}

}  // namespace

int run_clean(std::span<const std::string> arguments, Console& console) {
    std::filesystem::path folder;
    bool yes = false;
    std::string json;
    OptionSet options("clean",
                      "Lists, and removes if told to, what dead runs left in a folder. Runs that "
                      "live or can be resumed are never touched.");
    options.add_positional({"folder", "DIR", "a run's folder, or one given as --nvme", ""}, folder);
    options.add({"yes", "", "remove what is listed without asking", ""}, yes);
    add_json_option(options, json, "where the list goes as JSON");
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    if (!options.given("folder"))
        throw UsageError("clean needs a folder: `spillway clean DIR`");
    if (!std::filesystem::is_directory(folder))
        throw UsageError(fmt::format("{} is not a folder", folder.string()));
    const auto leftovers = offload::find_leftovers(folder);
    list(leftovers, folder, console);
    auto removal = Removal::not_wanted;
    if (!leftovers.empty())
        removal = yes ? Removal::wanted : ask(console, leftovers.size());
    if (removal == Removal::wanted) {
        offload::remove_leftovers(leftovers);
        console.line("removed");
    }
    if (!json.empty())
        console.write_json(report_json(leftovers, removal), json);
    return as_int(ExitCode::done);
}

}  // namespace spillway::engine
