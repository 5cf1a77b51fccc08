// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nvme/io_backend.h"
#include "tests/offload/synthetic_training.h"
#include "tests/support/combinations.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::StateFormat;

namespace {

constexpr std::uint64_t steps = 3;
constexpr int blocks = 5;

/// Runs that learn the same: all that may change a bit.
struct RunClass {
    std::string name;
    SyntheticGroups groups = synthetic_adamw();
    StateFormat state = StateFormat::fp32;
    double clip = 0.05;
    std::vector<std::uint64_t> nonfinite = {};
    std::optional<SyntheticLayerwiseGroups> layerwise = {};
    std::optional<SyntheticAdafactorGroups> adafactor = {};

    /// Nothing has to wait for the norm.
    [[nodiscard]] bool may_follow_gradients() const {
        return clip == 0 && nonfinite.empty() && !layerwise && !adafactor;
    }
};

std::vector<RunClass> run_classes() {
    using namespace cpu_optim;
    const SyntheticGroups momentum{SgdHyperParameters{.learning_rate = 1e-2, .momentum = 0.9},
                                   SgdHyperParameters{.learning_rate = 1e-3, .momentum = 0.9}};
    const SyntheticGroups lion{LionHyperParameters{.weight_decay = 0.1}, LionHyperParameters{}};
    const SyntheticGroups amsgrad{AdamHyperParameters{.amsgrad = Amsgrad::on},
                                  AdamHyperParameters{.amsgrad = Amsgrad::on}};
    const SyntheticAdafactorGroups adafactor{AdafactorHyperParameters{},
                                             AdafactorHyperParameters{.weight_decay = 0.1}};
    return {{.name = "adamw"},
            {.name = "adamw, another clip", .clip = 0.0500001},
            {.name = "adamw, no clip", .clip = 0},
            {.name = "adamw, skipped steps", .nonfinite = {1}},
            {.name = "adamw, bf16", .state = StateFormat::bf16},
            {.name = "adamw, int8", .state = StateFormat::int8, .clip = 0},
            {.name = "amsgrad", .groups = amsgrad},
            {.name = "momentum", .groups = momentum, .clip = 0},
            {.name = "lion, bf16", .groups = lion, .state = StateFormat::bf16, .clip = 0},
            {.name = "lamb",
             .layerwise = SyntheticLayerwiseGroups{LambHyperParameters{.learning_rate = 0.1},
                                                   LambHyperParameters{.weight_decay = 0}}},
            {.name = "lamb, bf16",
             .state = StateFormat::bf16,
             .layerwise = SyntheticLayerwiseGroups{LambHyperParameters{.learning_rate = 0.1},
                                                   LambHyperParameters{}}},
            {.name = "lars",
             .clip = 0,
             .layerwise = SyntheticLayerwiseGroups{LarsHyperParameters{.learning_rate = 5},
                                                   LarsHyperParameters{.learning_rate = 20}}},
            {.name = "adafactor", .adafactor = adafactor},
            {.name = "adafactor, skipped steps", .nonfinite = {1}, .adafactor = adafactor}};
}

SyntheticRun run_of(const RunClass& kind) {
    SyntheticRun run;
    run.model = synthetic_model(blocks);
    run.steps = steps;
    run.clip = kind.clip;
    run.nonfinite_iterations = kind.nonfinite;
    run.groups = kind.groups;
    run.state = kind.state;
    run.layerwise = kind.layerwise;
    if (kind.adafactor)
        run.model = matrix_model_of(run.model);
    run.adafactor = kind.adafactor;
    return run;
}

/// How a run comes to its end.
enum class Interruption { none, stopped, abandoned };

/// All that must not change a bit. Two values: before and after the interruption.
struct Combination {
    RunClass kind;
    std::array<SyntheticPlacement, 2> placements;
    std::array<double, 2> budgets{};  ///< 0: the least that will do, 1: all that can be used
    std::size_t drives = 1;
    bool on_disk = false;
    std::uint64_t reading_passes = 0;
    Interruption interruption = Interruption::none;
    std::uint64_t interrupted_after = 0;
};

std::string text_of(const SyntheticPlacement& place, double budget) {
    return fmt::format("{} budget {} chunk {} KiB windows {} {} threads {} {} {} {} commits {}",
                       place.device, budget, place.chunk_bytes >> 10, place.windows.update_slots,
                       place.windows.weight_buffers, place.threads, cpu_optim::isa_name(place.isa),
                       nvme::backend_names()[static_cast<std::size_t>(place.backend)],
                       place.timing == UpdateTiming::after_norm ? "after-norm" : "as-completed",
                       place.commit_every);
}

std::string text_of(const Combination& c) {
    auto text = fmt::format("{}: {} drives on {}, durable {}, {} reading passes, {}", c.kind.name,
                            c.drives, c.on_disk ? "disk" : "memory",
                            c.placements[0].durability == Durability::on ? "on" : "off",
                            c.reading_passes, text_of(c.placements[0], c.budgets[0]));
    if (c.interruption != Interruption::none)
        text += fmt::format("; {} after {}, then {}",
                            c.interruption == Interruption::stopped ? "stopped" : "abandoned",
                            c.interrupted_after, text_of(c.placements[1], c.budgets[1]));
    return text;
}

std::vector<nvme::BackendKind> backends_here() {
    std::vector<nvme::BackendKind> kinds{nvme::BackendKind::threads};
    if (nvme::io_uring_refusal().empty())
        kinds.push_back(nvme::BackendKind::io_uring);
    if (nvme::libaio_refusal().empty())
        kinds.push_back(nvme::BackendKind::libaio);
    return kinds;
}

void draw_placements(Combinations& draw, std::size_t which, std::vector<Combination>& all) {
    const auto devices = draw.column<std::string>({"cpu", "sim:64MiB", "sim:64MiB@4GB/s"});
    const auto budgets = draw.column<double>({0, 0, 0.1, 0.3, 0.5, 0.8, 1});
    const auto chunks = draw.column<std::size_t>({64, 64, 128, 192, 320, 1024, 0});
    const auto threads = draw.column<std::size_t>({1, 2, 3});
    const auto isas = draw.column(mostly_fast_isas());
    const auto backends = draw.column(backends_here());
    const auto timings =
        draw.column<UpdateTiming>({UpdateTiming::after_norm, UpdateTiming::as_completed});
    const auto commits = draw.column<std::uint64_t>({0, 1, 2});
    const auto windows = draw.column<Windows>({{}, {1, 1}, {2, 3}, {7, 9}});
    for (std::size_t i = 0; i < all.size(); ++i) {
        auto& place = all[i].placements.at(which);
        place.device = devices[i];
        place.device_bytes = std::size_t{4} << 20;
        all[i].budgets.at(which) = budgets[i];
        place.chunk_bytes = chunks[i] << 10;
        place.windows = windows[i];
        place.threads = threads[i];
        place.isa = isas[i];
        place.backend = backends[i];
        if (all[i].kind.may_follow_gradients())
            place.timing = timings[i];
        place.commit_every = commits[i];
    }
}

std::vector<Combination> draw_all(Combinations& draw, std::size_t count) {
    std::vector<Combination> all(count);
    const auto kinds = draw.column(run_classes());
    const auto durabilities =
        draw.column<Durability>({Durability::on, Durability::on, Durability::off});
    const auto drives = draw.column<std::size_t>({1, 1, 2, 3});
    const auto on_disk = draw.column<int>({0, 0, 0, 1});
    const auto reading = draw.column<std::uint64_t>({0, 0, 1});
    const auto interruptions = draw.column<Interruption>(
        {Interruption::none, Interruption::stopped, Interruption::abandoned});
    const auto after = draw.column<std::uint64_t>({1, 2});
    for (std::size_t i = 0; i < count; ++i) {
        auto& c = all[i];
        c.kind = kinds[i];
        c.placements[0].durability = c.placements[1].durability = durabilities[i];
        c.drives = drives[i];
        c.on_disk = on_disk[i] != 0;
        c.reading_passes = reading[i];
        c.interruption = interruptions[i];
        // One copy does not survive this, and says so: another test's matter.
        if (durabilities[i] == Durability::off && c.interruption == Interruption::abandoned)
            c.interruption = Interruption::stopped;
        c.interrupted_after = after[i];
    }
    draw_placements(draw, 0, all);
    draw_placements(draw, 1, all);
    return all;
}

/// The host memory that is `budget` of the way from the least that will do to all that can be used.
std::size_t host_bytes(const SyntheticRun& run, double budget) {
    const ElementOrder order(run.model.tensors);
    const auto kind =
        run.placement.device == "cpu" ? cuda::MemoryKind::host : cuda::MemoryKind::device;
    auto request = synthetic_request(run, kind);
    request.host_bytes = 0;
    std::size_t least = 0;
    try {
        static_cast<void>(make_plan(order, run.model.units, request));
    } catch (const PlanRefused& refused) {
        least = refused.needed_bytes;
    }
    request.host_bytes = std::size_t{1} << 30;
    const auto whole = make_plan(order, run.model.units, request);
    const auto most = std::max(
        least, whole.host_bytes + (kind == cuda::MemoryKind::host ? whole.device_bytes : 0));
    return least + static_cast<std::size_t>(budget * static_cast<double>(most - least));
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
    std::vector<std::uint32_t> bits;
    for (const auto value : values)
        bits.push_back(std::bit_cast<std::uint32_t>(value));
    return bits;
}

struct Tally {
    std::size_t streamed = 0;  ///< combinations whose steps read from a drive
    std::size_t spilled = 0;   ///< whose gradients waited there
    std::size_t resumed = 0;
};

/// One stage of a combination.
SyntheticOutcome run_stage(SyntheticRun& run, const Combination& c, std::size_t which,
                           Tally& tally) {
    run.placement = c.placements.at(which);
    run.placement.host_bytes = host_bytes(run, c.budgets.at(which));
    auto outcome = run_synthetic(run);
    CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
    tally.streamed += outcome.plan.nvme_read_bytes_per_step != 0 ? 1U : 0U;
    tally.spilled += outcome.plan.nvme_gradient_bytes_per_step != 0 ? 1U : 0U;
    return outcome;
}

std::vector<std::uint32_t> bits_of(const Combination& c, Tally& tally) {
    const TemporaryFolder folder(c.on_disk ? std::filesystem::current_path() : quick_place());
    auto run = run_of(c.kind);
    run.out = folder.path() / "out";
    run.reading_passes = c.reading_passes;
    for (std::size_t drive = 0; drive < c.drives; ++drive) {
        auto path = folder.path() / std::to_string(drive);
        std::filesystem::create_directory(path);
        if (drive == 0)
            run.nvme = path;
        else
            run.more_nvme.push_back(path);
    }
    if (c.interruption == Interruption::none)
        return bits_of(run_stage(run, c, 0, tally).masters);
    run.steps = c.interrupted_after;
    run.end =
        c.interruption == Interruption::stopped ? SyntheticEnd::committed : SyntheticEnd::abandoned;
    static_cast<void>(run_stage(run, c, 0, tally));
    run.steps = steps;
    run.end = SyntheticEnd::committed;
    const auto outcome = run_stage(run, c, 1, tally);
    if (c.interruption == Interruption::stopped)
        CHECK(outcome.resumed_from == c.interrupted_after);
    else
        CHECK(outcome.resumed_from.value_or(steps) <= c.interrupted_after);
    ++tally.resumed;
    return bits_of(outcome.masters);
}

/// In host memory, by one thread with plain arithmetic, from the first step to the last.
std::vector<std::uint32_t> plain_bits(const RunClass& kind) {
    const TemporaryFolder folder(quick_place());
    auto run = run_of(kind);
    run.out = folder.path() / "out";
    run.placement.isa = cpu_optim::Isa::scalar;
    return bits_of(run_synthetic(run).masters);
}

}  // namespace

TEST_CASE("placement matrix: a training run ends with one set of weights") {
    constexpr std::size_t count = 84;
    Combinations draw("placement matrix of the training engine", count);
    const auto all = draw_all(draw, count);
    std::map<std::string, std::vector<std::uint32_t>> expected;
    for (const auto& kind : run_classes())
        expected.emplace(kind.name, plain_bits(kind));
    check_classes_differ(expected);
    Tally tally;
    check_combinations(
        draw, [&](std::size_t index) { return text_of(all[index]); },
        [&](std::size_t index) {
            return bits_of(all[index], tally) == expected.at(all[index].kind.name);
        });
    if (draw.chosen().size() == count) {
        CHECK(tally.streamed > count / 3);
        CHECK(tally.spilled > count / 20);
        CHECK(tally.resumed > count / 2);
    }
}
