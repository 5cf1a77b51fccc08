// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// The search against a made-up machine, whose true times are known and whose clock is its own.
#include "engine/measure/tuning_search.h"

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

using namespace spillway::engine;

namespace {

constexpr Tuning defaults{.chunk_bytes = 8,
                          .update_window = 4,
                          .weight_window = 4,
                          .io_block_bytes = 8,
                          .io_depth = 32,
                          .update_threads = 4};

/// A step's true time by a tuning and a scene, in which every field has its own factor.
class Machine {
  public:
    explicit Machine(unsigned seed) : random_(seed) {}
    virtual ~Machine() = default;

    [[nodiscard]] virtual double true_s(const Tuning& tuning, TuningScene scene) const = 0;

    std::optional<double> timed(const Tuning& tuning, TuningScene scene) {
        ++steps;
        // A shared drive's speed drifts for both of a pair; each step has noise of its own.
        const double drift = 1.5 + std::sin(clock_s * drift_per_s);
        std::uniform_real_distribution<double> spread(1 - noise, 1 + noise);
        const auto seconds = true_s(tuning, scene) * drift * luck_of(tuning) * spread(random_);
        clock_s += seconds;
        return seconds;
    }
    TuningOutcome search(double limit_s = 1000) {
        return search_tuning(
            {.defaults = defaults,
             .ladders = ladders,
             .scenes = {TuningScene::update, TuningScene::beside_passes},
             .limit_s = limit_s,
             .now_s = [this] { return clock_s; },
             .forget = [this] { lucks_.clear(); },
             .stop = stop},
            [this](const Tuning& tuning, TuningScene scene) { return timed(tuning, scene); });
    }

    std::vector<TuningLadder> ladders{
        {.field = &Tuning::chunk_bytes, .rungs = {1, 2, 4, 8, 16, 32, 64}},
        {.field = &Tuning::update_window, .rungs = {2, 3, 4, 6, 8}},
        {.field = &Tuning::update_threads,
         .rungs = {1, 2, 3, 4},
         .scene = TuningScene::beside_passes},
        {.field = &Tuning::io_depth, .rungs = {8, 16, 32, 64}}};
    std::function<bool()> stop = [] { return false; };
    double noise = 0;
    double most_luck = 0;  ///< of what a tuning steps with, for as long as it is kept
    double drift_per_s = 0.3;
    double clock_s = 0;
    std::size_t steps = 0;

  private:
    double luck_of(const Tuning& tuning) {
        for (const auto& [known, luck] : lucks_) {
            if (known == tuning)
                return luck;
        }
        std::uniform_real_distribution<double> lucks(1, 1 + most_luck);
        lucks_.emplace_back(tuning, lucks(random_));
        return lucks_.back().second;
    }

    std::mt19937 random_;
    std::vector<std::pair<Tuning, double>> lucks_;
};

/// On which the defaults are best, by so much for each rung that one leaves them.
class DefaultsAreBest final : public Machine {
  public:
    DefaultsAreBest(unsigned seed, double loss) : Machine(seed), loss_(loss) {}
    [[nodiscard]] double true_s(const Tuning& tuning, TuningScene) const override {
        double seconds = 0.1;
        for (const auto& field : tuning_fields)
            seconds *= tuning.*field.member == defaults.*field.member ? 1 : 1 + loss_;
        return seconds;
    }

  private:
    double loss_;
};

/// On which chunks of 32 and 2 threads are best: each step there gains a quarter.
class OthersAreBetter final : public Machine {
  public:
    using Machine::Machine;
    [[nodiscard]] double true_s(const Tuning& tuning, TuningScene scene) const override {
        const auto from = [](double value, double best) {
            return std::abs(std::log2(value / best));
        };
        double seconds = 0.1 * std::pow(1.25, from(static_cast<double>(tuning.chunk_bytes), 32));
        if (scene == TuningScene::beside_passes)
            seconds *= 1 + 0.25 * std::abs(static_cast<double>(tuning.update_threads) - 2);
        return seconds * (tuning.update_window == 4 ? 1 : 1.02);
    }
};

/// On which fewer threads help beside passes and hurt alone.
class TwoMinds final : public Machine {
  public:
    using Machine::Machine;
    [[nodiscard]] double true_s(const Tuning& tuning, TuningScene scene) const override {
        const bool fewer = tuning.update_threads < 4;
        if (scene == TuningScene::beside_passes)
            return fewer ? 0.08 : 0.1;
        return fewer ? 0.11 : 0.1;
    }
};

double ratio_to_defaults(const Machine& machine, const TuningOutcome& outcome) {
    return machine.true_s(outcome.values, TuningScene::update) /
           machine.true_s(defaults, TuningScene::update);
}

}  // namespace

TEST_CASE("tuning search: where nothing is faster the defaults stay, at any noise") {
    std::size_t others = 0;
    for (unsigned seed = 0; seed < 300; ++seed) {
        DefaultsAreBest machine(seed, 0.03);
        machine.noise = seed % 3 == 0 ? 0.05 : seed % 3 == 1 ? 0.15 : 0.3;
        const auto outcome = machine.search();
        INFO("seed " << seed);
        CHECK(outcome.whole);
        others += outcome.values == defaults ? 0U : 1U;
        if (outcome.values == defaults)
            CHECK(outcome.gain == 1);
        if (machine.noise < 0.2)
            CHECK(ratio_to_defaults(machine, outcome) <= 1);
    }
    CHECK(others <= 2);  // of 300, by noise of a third alone
}

TEST_CASE("tuning search: where memory and files happen to lie is no gain") {
    std::size_t others = 0;
    for (unsigned seed = 0; seed < 300; ++seed) {
        DefaultsAreBest machine(seed, 0.03);
        machine.noise = 0.1;
        machine.most_luck = 0.25;
        others += machine.search().values == defaults ? 0U : 1U;
    }
    CHECK(others <= 6);
}

TEST_CASE("tuning search: what is clearly faster is found, at noise of a seventh") {
    std::size_t best = 0;
    for (unsigned seed = 0; seed < 100; ++seed) {
        OthersAreBetter machine(seed);
        machine.noise = seed == 0 ? 0 : 0.07;
        const auto outcome = machine.search();
        INFO("seed " << seed);
        CHECK(ratio_to_defaults(machine, outcome) < 0.85);
        CHECK(outcome.gain > 1.1);
        best += outcome.values.chunk_bytes == 32 && outcome.values.update_threads == 2 ? 1U : 0U;
        if (seed == 0)
            CHECK(best == 1);
    }
    CHECK(best > 80);
}

TEST_CASE("tuning search: what gains in one scene and loses in another is not taken") {
    for (unsigned seed = 0; seed < 50; ++seed) {
        TwoMinds machine(seed);
        machine.noise = 0.02;
        CHECK(machine.search().values == defaults);
    }
}

TEST_CASE("tuning search: its time is a limit, whatever has been found by then") {
    for (const double limit_s : {0.0, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0}) {
        for (unsigned seed = 0; seed < 20; ++seed) {
            OthersAreBetter machine(seed);
            machine.noise = 0.1;
            const auto outcome = machine.search(limit_s);
            INFO(limit_s << " s, seed " << seed << ", took " << machine.clock_s);
            constexpr double longest_pair_s = 2 * 0.1 * 2.5 * 1.25 * 1.25 * 1.75 * 1.1;
            CHECK(machine.clock_s <= limit_s + longest_pair_s);
            CHECK(ratio_to_defaults(machine, outcome) <= 1);
            if (limit_s < 1)
                CHECK(outcome.values == defaults);
        }
    }
}

TEST_CASE("tuning search: bad candidates cost two pairs, not five") {
    DefaultsAreBest machine(1, 1.0);
    const auto outcome = machine.search();
    CHECK(outcome.values == defaults);
    // Up and down each of four ladders, but up from the most threads.
    CHECK(outcome.compared == 7);
    CHECK(machine.steps == 7 * 2 * 2);
}

TEST_CASE("tuning search: a tuning that cannot be made is passed over") {
    OthersAreBetter machine(3);
    std::size_t refused = 0;
    const auto outcome =
        search_tuning({.defaults = defaults,
                       .ladders = machine.ladders,
                       .scenes = {TuningScene::update},
                       .now_s = [&] { return machine.clock_s * 0.01; }},
                      [&](const Tuning& tuning, TuningScene scene) -> std::optional<double> {
                          if (tuning.chunk_bytes > 16) {
                              ++refused;
                              return std::nullopt;
                          }
                          return machine.timed(tuning, scene);
                      });
    CHECK(outcome.values.chunk_bytes == 16);
    CHECK(refused > 0);
}

TEST_CASE("tuning search: a stop leaves the defaults") {
    OthersAreBetter machine(4);
    machine.stop = [&] { return machine.steps >= 12; };
    CHECK(machine.search().values == defaults);
    CHECK(machine.steps <= 14);
}
