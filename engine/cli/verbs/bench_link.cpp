// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuda/device_spec.h"
#include "cuda/link_bench.h"
#include "engine/cli/option_set.h"
#include "engine/cli/output_place.h"
#include "engine/cli/units.h"
#include "engine/cli/verbs/bench.h"
#include "engine/train/stop_request.h"
#include "engine/train/train_report.h"

namespace spillway::engine {

namespace {

using Json = nlohmann::ordered_json;

/// As given, sizes of blocks still texts.
struct Given {
    std::string device;
    std::uint64_t bytes = std::uint64_t{256} << 20;
    std::vector<std::string> blocks{"64KiB", "1MiB", "16MiB"};
    std::uint32_t passes = 7;
    std::string json;
};

void declare(OptionSet& options, Given& given) {
    options.add({"device", "cuda:N|sim:BYTES[@RATE]", "whose link is measured; needed", ""},
                given.device);
    options.add_bytes({"size", "BYTES", "moved each way in a pass", "256MiB"}, given.bytes);
    options.add({"block", "BYTES[,BYTES]", "of one copy", "64KiB,1MiB,16MiB"}, given.blocks);
    options.add({"passes", "N", "timed for each row; the median counts", ""}, given.passes);
    add_json_option(options, given.json);
}

cuda::LinkBenchOptions options_of(const Given& given) {
    cuda::LinkBenchOptions options{.bytes = given.bytes, .blocks = {}, .passes = given.passes};
    try {
        for (const auto& block : given.blocks)
            options.blocks.push_back(parse_size_bytes(block));
    } catch (const std::invalid_argument& error) {
        throw UsageError(fmt::format("--block: {}", error.what()));
    }
    return options;
}

std::unique_ptr<cuda::Device> open_device(const Given& given,
                                          const cuda::LinkBenchOptions& options) {
    if (given.device.empty())
        throw UsageError("bench link needs a device: `spillway bench link --device cuda:0`");
    try {
        // As much as it takes of a GPU that others may be using.
        return cuda::make_device(given.device, cuda::link_bench_device_bytes(options));
    } catch (const std::invalid_argument& error) {
        throw UsageError(fmt::format("--device: {}", error.what()));
    }
}

cuda::LinkBenchResult measure(cuda::Device& device, const cuda::LinkBenchOptions& options) {
    try {
        return cuda::measure_link(device, options);
    } catch (const std::invalid_argument& error) {
        throw UsageError(error.what());
    } catch (const cuda::OutOfDeviceMemory& error) {
        throw UsageError(fmt::format("--size: {}", error.what()));
    }
}

void show(const cuda::LinkBenchResult& result, double link_bytes_per_s, Console& console) {
    console.line(fmt::format("{:<15} {:<9} {:>9} {:>9} {:>19}", "", "host", "block", "GB/s",
                             "least to most"));
    for (const auto& row : result.rows)
        console.line(fmt::format("{:<15} {:<9} {:>9} {:>9.3f} {:>8.3f} to {:>7.3f}",
                                 cuda::name_of(row.traffic), cuda::name_of(row.pages),
                                 human_bytes(row.block_bytes), row.bytes_per_s * 1e-9,
                                 row.least_bytes_per_s * 1e-9, row.most_bytes_per_s * 1e-9));
    if (link_bytes_per_s > 0)
        console.line(
            fmt::format("the link is made to move {:.3f} GB/s each way", link_bytes_per_s * 1e-9));
    if (!result.interrupted)
        console.line(fmt::format("verified {}: all as sent", human_bytes(result.verified_bytes)));
}

Json json_of(const cuda::LinkBenchResult& result, const cuda::Device& device, const Given& given) {
    Json root{{"device", device.name()},
              {"bytes", given.bytes},
              {"passes", given.passes},
              {"link_bytes_per_s", nullptr},
              {"rows", Json::array()},
              {"verified_bytes", result.verified_bytes},
              {"interrupted", result.interrupted}};
    if (device.link_bytes_per_s() > 0)
        root["link_bytes_per_s"] = device.link_bytes_per_s();
    for (const auto& row : result.rows)
        root["rows"].push_back({{"direction", cuda::name_of(row.traffic)},
                                {"host_pages", cuda::name_of(row.pages)},
                                {"block_bytes", row.block_bytes},
                                {"bytes_per_s", row.bytes_per_s},
                                {"least_bytes_per_s", row.least_bytes_per_s},
                                {"most_bytes_per_s", row.most_bytes_per_s}});
    return root;
}

}  // namespace

int run_bench_link(std::span<const std::string> arguments, Console& console) {
    Given given;
    OptionSet options("bench link", "Measures copies between host memory and a device.");
    declare(options, given);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    auto wanted = options_of(given);
    const StopRequest stop;
    wanted.stop = [&] { return stop.requested(); };
    const auto device = open_device(given, wanted);
    const auto result = measure(*device, wanted);
    show(result, device->link_bytes_per_s(), console);
    if (!given.json.empty())
        console.write_json(json_of(result, *device, given).dump(2), given.json);
    return as_int(result.interrupted ? ExitCode::interrupted : ExitCode::done);
}

}  // namespace spillway::engine
