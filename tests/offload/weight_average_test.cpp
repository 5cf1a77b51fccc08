// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cstring>
#include <stdexcept>

#include <catch2/catch.hpp>

#include "offload/state_reader.h"
#include "tests/offload/synthetic_training.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

constexpr std::uint64_t steps = 4;

const AverageRule ema{.parameters = cpu_optim::EmaParameters{.decay = 0.75}};
const AverageRule swa{.parameters = cpu_optim::SwaParameters{}, .every = 2};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// A run in a folder of its own. Most planes, and some gradients, live on the drive.
class Workplace {
  public:
    explicit Workplace(const AverageRule& rule, const std::string& device = "cpu") {
        std::filesystem::create_directory(folder_.path() / "drive");
        run.out = folder_.path() / "out";
        run.nvme = folder_.path() / "drive";
        run.steps = steps;
        run.average = rule;
        run.placement.device = device;
        run.placement.host_bytes = std::size_t{21} << 20;
        run.placement.device_bytes = std::size_t{4} << 20;
        run.placement.chunk_bytes = std::size_t{64} << 10;
    }

  private:
    TemporaryFolder folder_;

  public:
    SyntheticRun run;
};

/// Of the weights that the plain loop has after each update, element by element.
std::vector<float> expected_average(const AverageRule& rule, std::uint64_t updates) {
    std::vector<float> average;
    for (std::uint64_t update = 1; update <= updates; ++update) {
        const auto coefficients = rule.coefficients(update);
        if (!coefficients)
            continue;
        const auto weights = reference_synthetic(update, 0.05);
        average.resize(weights.size());
        for (std::size_t i = 0; i < weights.size(); ++i)
            average[i] = cpu_optim::averaged(*coefficients, average[i], weights[i]);
    }
    return average;
}

/// What the last commit in a folder holds.
std::vector<float> stored_average(const std::filesystem::path& out) {
    StateReader reader(out, nvme::BackendKind::automatic);
    std::vector<float> stored;
    reader.visit_all(
        [&](TensorId, std::uint64_t, std::span<const float> values) {
            stored.insert(stored.end(), values.begin(), values.end());
        },
        WeightKind::averaged);
    return stored;
}

}  // namespace

TEST_CASE("an average has the same bits wherever its plane lies, and leaves the weights alone") {
    const auto& rule = GENERATE(0, 1) == 0 ? ema : swa;
    const auto expected = expected_average(rule, steps);
    const auto masters = reference_synthetic(steps, 0.05);
    REQUIRE_FALSE(same_bits(expected, masters));
    // All on the drive; weights in memory, but not the average; all in memory.
    const std::vector<std::pair<std::string, std::size_t>> placements{
        {"sim:64MiB", 21}, {"cpu", 44}, {"cpu", 1024}};
    for (const auto& [device, host_mib] : placements) {
        CAPTURE(rule.every, device, host_mib);
        Workplace place(rule, device);
        place.run.placement.host_bytes = host_mib << 20;
        place.run.placement.threads = host_mib == 44 ? 2 : 1;
        const auto outcome = run_synthetic(place.run);
        CHECK(same_bits(outcome.masters, masters));
        CHECK(same_bits(outcome.averages, expected));
        CHECK(same_bits(outcome.averages_read, expected));
        CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
        const auto stored = stored_average(place.run.out);
        CHECK(same_bits(stored, expected));
    }
}

TEST_CASE("an average goes on after a resume in other memory, and as gradients are completed") {
    const auto expected = expected_average(swa, steps);
    Workplace place(swa);
    place.run.steps = 3;
    place.run.placement.commit_every = 1;
    static_cast<void>(run_synthetic(place.run));
    place.run.steps = steps;
    place.run.placement.host_bytes = std::size_t{1} << 30;
    const auto outcome = run_synthetic(place.run);
    CHECK(outcome.resumed_from == 3);
    CHECK(same_bits(outcome.averages, expected));

    Workplace at_once(ema);
    at_once.run.steps = 2;
    at_once.run.clip = 0.0;
    at_once.run.placement.timing = UpdateTiming::as_completed;
    const auto found = run_synthetic(at_once.run);
    Workplace waiting(ema);
    waiting.run.steps = 2;
    waiting.run.clip = 0.0;
    CHECK(same_bits(found.averages, run_synthetic(waiting.run).averages));
}

TEST_CASE("before the first update that it takes up there is no average") {
    Workplace place(swa);
    place.run.steps = 1;
    const auto outcome = run_synthetic(place.run);
    CHECK(outcome.averages.empty());
    CHECK(outcome.updates == 1);
}

TEST_CASE("an average is planned for as a plane more, and fixed when a run is made") {
    Workplace with(ema);
    with.run.steps = 1;
    const auto outcome = run_synthetic(with.run);
    auto without = with.run;
    without.average.reset();
    CHECK_THROWS_WITH(run_synthetic(without),
                      Catch::Contains("this run keeps an average of its weights"));
    Workplace plain(ema);
    plain.run.steps = 1;
    plain.run.average.reset();
    const auto less = run_synthetic(plain.run);
    CHECK(outcome.plan.planes.size() == less.plan.planes.size() + 1);
    CHECK(outcome.plan.disk_bytes > less.plan.disk_bytes);
    const auto parameters = outcome.masters.size();
    CHECK(outcome.plan.nvme_written_bytes_per_step >=
          less.plan.nvme_written_bytes_per_step + 4 * parameters);
    plain.run.average = ema;
    CHECK_THROWS_WITH(run_synthetic(plain.run),
                      Catch::Contains("this run keeps no average of its weights"));
}
