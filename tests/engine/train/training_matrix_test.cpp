// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "cpu_optim/isa.h"
#include "engine/settings/setting_fields.h"
#include "engine/train/run_setup.h"
#include "engine/train/trainer.h"
#include "nvme/io_backend.h"
#include "tests/support/combinations.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::engine;
using namespace spillway::testing;

namespace {

using Flags = std::vector<std::pair<std::string, std::string>>;

constexpr std::uint64_t steps = 3;

/// What every run here has, named as on the command line.
Flags common_flags() {
    const auto corpus =
        std::filesystem::path(__FILE__).parent_path() / "../../../engine/data/kjv.txt";
    return {{"model", "gpt2:6x128x2"},
            {"context", "32"},
            {"batch", "4"},
            {"data", corpus.string()},
            {"lr", "3e-3"},
            {"schedule-steps", std::to_string(steps)},
            {"probe", "off"},
            {"eval-sequences", "0"}};
}

/// Runs that learn the same.
struct RunClass {
    std::string name;
    Flags flags;
};

std::vector<RunClass> run_classes() {
    return {{"adamw", {}},
            {"adamw, another seed", {{"seed", "8"}}},
            {"adamw, nothing waits", {{"clip", "off"}, {"nonfinite", "stop"}}},
            {"adamw, bf16 state", {{"state", "bf16"}}},
            {"adamw, int8 state", {{"state", "int8"}}},
            {"sgd", {{"optimizer", "sgd"}, {"lr", "0.1"}}},
            {"lamb", {{"optimizer", "lamb"}}},
            {"lars", {{"optimizer", "lars"}, {"trust-coefficient", "1"}}},
            {"adafactor", {{"optimizer", "adafactor"}, {"lr", "1e-2"}}}};
}

/// All that must not change a bit: flags of the session before and the one after an interruption,
/// which may come after the first or second step, or not at all (0).
struct Combination {
    RunClass kind;
    std::array<Flags, 2> placements;
    std::array<double, 2> budgets{1, 1};  ///< host memory; 0: the least that will do
    std::uint64_t interrupted_after = 0;
};

std::vector<std::string> backends_here() {
    std::vector<std::string> names{"threads"};
    if (nvme::io_uring_refusal().empty())
        names.emplace_back("io_uring");
    if (nvme::libaio_refusal().empty())
        names.emplace_back("libaio");
    return names;
}

void draw_placements(Combinations& draw, std::size_t which, std::vector<Combination>& all) {
    const auto devices = draw.column<std::string>({"cpu", "sim:16MiB", "sim:16MiB@4GB/s"});
    const auto budgets = draw.column<double>({0, 0, 0.1, 0.2, 0.4, 1});
    const auto chunks = draw.column<std::string>({"64KiB", "64KiB", "128KiB"});
    const auto drives = draw.column<std::string>({"", "a", "a", "a,b", "a,b,c"});
    const auto batches = draw.column<std::string>({"1", "2", "4"});
    const auto recomputes = draw.column<std::string>({"auto", "full"});
    const auto threads = draw.column<std::string>({"1", "2", "3"});
    const auto isas = draw.column(mostly_fast_isas());
    const auto backends = draw.column(backends_here());
    const auto commits = draw.column<std::string>({"10m", "1", "2"});
    const auto windows = draw.column<std::string>({"0", "1", "3", "7"});
    const auto weight_windows = draw.column<std::string>({"0", "1", "6"});
    const auto update_threads = draw.column<std::string>({"0", "1", "2"});
    const auto blocks = draw.column<std::string>({"0", "4KiB", "64KiB"});
    for (std::size_t i = 0; i < all.size(); ++i) {
        auto& flags = all[i].placements.at(which);
        all[i].budgets.at(which) = drives[i].empty() ? 1 : budgets[i];
        flags.insert(flags.end(), {{"device", devices[i]},
                                   {"nvme", drives[i]},
                                   {"chunk-size", chunks[i]},
                                   {"micro-batches", batches[i]},
                                   {"recompute", recomputes[i]},
                                   {"threads", threads[i]},
                                   {"isa", std::string(cpu_optim::isa_name(isas[i]))},
                                   {"io-backend", backends[i]},
                                   {"commit-every", commits[i]},
                                   {"update-window", windows[i]},
                                   {"weight-window", weight_windows[i]},
                                   {"update-threads", update_threads[i]},
                                   {"io-block", blocks[i]}});
    }
}

std::vector<Combination> draw_all(Combinations& draw, std::size_t count) {
    std::vector<Combination> all(count);
    const auto kinds = draw.column(run_classes());
    const auto after = draw.column<std::uint64_t>({0, 1, 2});
    const auto durable = draw.column<std::string>({"on", "on", "off"});
    for (std::size_t i = 0; i < count; ++i) {
        all[i].kind = kinds[i];
        all[i].kind.flags.emplace_back("durable", durable[i]);
        all[i].interrupted_after = after[i];
    }
    draw_placements(draw, 0, all);
    draw_placements(draw, 1, all);
    return all;
}

std::string text_of(const Flags& flags) {
    std::string text;
    for (const auto& [name, value] : flags)
        text += fmt::format(" --{} {}", name, value);
    return text;
}

std::string text_of(const Combination& c) {
    return fmt::format(
        "{}{}, budget {}{}", text_of(c.kind.flags), text_of(c.placements[0]), c.budgets[0],
        c.interrupted_after == 0
            ? ""
            : fmt::format("; stopped after {}, then{}, budget {}", c.interrupted_after,
                          text_of(c.placements[1]), c.budgets[1]));
}

TrainSettings settings_of(const std::vector<Flags>& all, const std::filesystem::path& folder) {
    TrainSettings settings;
    for (const auto& flags : all) {
        for (const auto& [name, value] : flags) {
            const auto& fields = setting_fields();
            const auto field =
                std::ranges::find_if(fields, [&](const auto& each) { return each.name == name; });
            REQUIRE(field != fields.end());
            field->write(settings, value);
        }
    }
    if (!settings.nvme.empty()) {
        std::string paths;
        for (const auto& drive : nvme_folders(settings.nvme)) {
            std::filesystem::create_directories(folder / drive);
            paths += (paths.empty() ? "" : ",") + (folder / drive).string();
        }
        settings.nvme = paths;
    }
    settings.out = folder / "run";
    settings.profile = folder / "profile.json";
    return settings;
}

/// What a run's host memory must be: so much more than the least that a refusal names.
std::uint64_t host_memory(TrainSettings settings, double budget) {
    constexpr std::uint64_t mib = std::uint64_t{1} << 20;
    resolve_choices(settings);
    const auto layout = make_layout(settings);
    const bool on_cpu = settings.device == "cpu";
    for (std::uint64_t least = mib;;) {
        const MemoryBudgets budgets{on_cpu ? cuda::MemoryKind::host : cuda::MemoryKind::device,
                                    least, on_cpu ? least : 16 * mib};
        try {
            static_cast<void>(
                plan_training(layout, settings, settings.threads, budgets, nvme_tier(settings)));
            return least + static_cast<std::uint64_t>(budget * 24 * mib);
        } catch (const offload::PlanRefused& refused) {
            REQUIRE(refused.needed_bytes > least);
            least = refused.needed_bytes;
        }
    }
}

/// One session of a run, from where the one before stopped.
TrainResult session(TrainSettings settings, double budget, std::uint64_t until) {
    std::ostringstream human;
    std::ostringstream results;
    Console console(human, results, HumanStream::plain);
    settings.steps = until;
    settings.resume = std::filesystem::exists(settings.out);
    settings.host_mem = host_memory(settings, budget);
    const StopRequest stop;
    const auto given = [](std::string_view name) { return name == "steps" || name == "nvme"; };
    auto setup = prepare_run(std::move(settings), given, stop, console);
    return Trainer(setup, console).run(stop);
}

struct Tally {
    std::size_t streamed = 0;  ///< sessions whose steps read from a drive
    std::size_t moved = 0;     ///< that took the state to other drives first
};

std::uint64_t weights_of(const Combination& c, Tally& tally) {
    const TemporaryFolder folder(quick_place());
    TrainResult result;
    for (const std::size_t which : {std::size_t{0}, std::size_t{1}}) {
        if (which == 1 && c.interrupted_after == 0)
            break;
        const bool last = which == 1 || c.interrupted_after == 0;
        result = session(
            settings_of({common_flags(), c.kind.flags, c.placements.at(which)}, folder.path()),
            c.budgets.at(which), last ? steps : c.interrupted_after);
        CHECK(result.peak.host_bytes <= result.plan.host_bytes(result.budgets.device_kind));
        tally.streamed += result.plan.offload.nvme_read_bytes_per_step != 0 ? 1U : 0U;
        tally.moved += result.moved.has_value() ? 1U : 0U;
    }
    CHECK(result.updates == steps);
    return result.weights_xxh3;
}

}  // namespace

TEST_CASE("training matrix: placement never changes the weights of a trained model") {
    constexpr std::size_t count = 24;
    Combinations draw("training matrix", count);
    const auto all = draw_all(draw, count);
    std::map<std::string, std::uint64_t> expected;
    for (const auto& kind : run_classes()) {
        Tally ignored;
        const Flags plain{{"threads", "1"}, {"micro-batches", "1"}, {"isa", "scalar"}};
        expected[kind.name] = weights_of({.kind = kind, .placements = {plain, {}}}, ignored);
    }
    check_classes_differ(expected);
    Tally tally;
    check_combinations(
        draw, [&](std::size_t index) { return text_of(all[index]); },
        [&](std::size_t index) {
            return weights_of(all[index], tally) == expected.at(all[index].kind.name);
        });
    if (draw.chosen().size() == count) {
        CHECK(tally.streamed > count / 4);
        CHECK(tally.moved > 0);
    }
}
