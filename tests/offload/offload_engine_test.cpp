// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/offload_engine.h"

#include <cstring>

#include <catch2/catch.hpp>

#include "tests/offload/synthetic_training.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

constexpr std::uint64_t steps = 4;

SyntheticOutcome run_once(const SyntheticPlacement& placement, const SyntheticClip& clip = 0.05,
                          const std::vector<std::uint64_t>& nonfinite = {},
                          const SyntheticGroups& groups = synthetic_adamw()) {
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder.path() / "drive");
    SyntheticRun run;
    run.out = folder.path() / "out";
    run.nvme = folder.path() / "drive";
    run.steps = steps;
    run.placement = placement;
    run.clip = clip;
    run.nonfinite_iterations = nonfinite;
    run.groups = groups;
    return run_synthetic(run);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Small enough that most planes, and some gradients, live on the drive.
SyntheticPlacement starved(const std::string& device) {
    SyntheticPlacement placement;
    placement.device = device;
    placement.host_bytes = std::size_t{19} << 20;
    placement.device_bytes = std::size_t{4} << 20;
    placement.chunk_bytes = std::size_t{64} << 10;
    return placement;
}

}  // namespace

TEST_CASE("everything in host memory equals the plain reference") {
    const auto outcome = run_once({});
    CHECK(same_bits(outcome.masters, reference_synthetic(steps, 0.05)));
    CHECK(outcome.updates == steps);
    CHECK(outcome.plan.nvme_read_bytes_per_step == 0);
}

TEST_CASE("every optimizer keeps its own planes and has the bits of its reference") {
    using namespace cpu_optim;
    const std::vector<std::pair<SyntheticGroups, std::size_t>> all{
        {{SgdHyperParameters{.learning_rate = 1e-2}, SgdHyperParameters{.learning_rate = 1e-3}}, 2},
        {{SgdHyperParameters{.learning_rate = 1e-2, .momentum = 0.9},
          SgdHyperParameters{.learning_rate = 1e-3, .momentum = 0.9}},
         3},
        {{LionHyperParameters{.weight_decay = 0.1}, LionHyperParameters{}}, 3},
        {{AdagradHyperParameters{}, AdagradHyperParameters{.weight_decay = 0.1}}, 3},
        {{AdamHyperParameters{.amsgrad = Amsgrad::on}, AdamHyperParameters{.amsgrad = Amsgrad::on}},
         5},
    };
    for (const auto& [groups, planes] : all) {
        CAPTURE(optimizer_name(groups.front()), planes);
        const auto expected = reference_synthetic(steps, 0.05, {}, groups);
        for (const auto& placement : {SyntheticPlacement{}, starved("cpu"), starved("sim:64MiB")}) {
            const auto outcome = run_once(placement, 0.05, {}, groups);
            CHECK(outcome.plan.planes.size() == planes);
            CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
            CHECK(same_bits(outcome.masters, expected));
        }
    }
}

TEST_CASE("placement changes no bit") {
    const auto expected = reference_synthetic(steps, 0.05);
    for (const auto* const device : {"cpu", "sim:64MiB", "sim:64MiB@2GB/s"}) {
        for (const std::size_t host_mib : {18u, 20u, 24u, 34u, 1024u}) {
            for (const std::size_t chunk_kib : {64u, 192u, 1024u}) {
                auto placement = starved(device);
                placement.host_bytes = host_mib << 20;
                placement.chunk_bytes = chunk_kib << 10;
                placement.threads = 1 + host_mib % 4 / 2;
                placement.commit_every = chunk_kib == 192 ? 2 : 0;
                CAPTURE(device, host_mib, chunk_kib);
                try {
                    const auto outcome = run_once(placement);
                    CHECK(same_bits(outcome.masters, expected));
                    CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
                } catch (const PlanRefused& refused) {
                    CHECK(refused.needed_bytes > refused.available_bytes);
                    CHECK(chunk_kib > 64);
                }
            }
        }
    }
}

TEST_CASE(
    "a starved run streams its state and spills gradients, and its bytes are those of the plan") {
    const auto outcome = run_once(starved("cpu"));
    CHECK(outcome.plan.nvme_written_bytes_per_step > 0);
    CHECK(outcome.statistics.nvme_written_bytes > 0);
    CHECK(same_bits(outcome.masters, reference_synthetic(steps, 0.05)));
}

TEST_CASE("passes that find their weights on the device already, or only read, change nothing") {
    const auto expected = reference_synthetic(steps, 0.05);
    for (const auto* const device : {"cpu", "sim:64MiB"}) {
        for (const std::size_t host_mib : {19u, 1024u}) {
            const TemporaryFolder folder;
            SyntheticRun run;
            run.out = folder.path() / "out";
            run.steps = steps;
            run.placement = starved(device);
            run.placement.host_bytes = host_mib << 20;
            run.placement.device_bytes = std::size_t{60} << 20;  // room for every unit
            if (host_mib == 19 && run.placement.device == "cpu")
                run.placement.device_bytes = std::size_t{4} << 20;
            run.reading_passes = 2;
            CAPTURE(device, host_mib);
            CHECK(same_bits(run_synthetic(run).masters, expected));
        }
    }
}

TEST_CASE("backends and instruction sets change no bit") {
    const auto expected = reference_synthetic(steps, 0.05);
    for (const auto isa : cpu_optim::supported_isas()) {
        auto placement = starved("cpu");
        placement.isa = isa;
        placement.backend = nvme::BackendKind::threads;
        CHECK(same_bits(run_once(placement).masters, expected));
    }
}

TEST_CASE(
    "without waiting for the norm, updates follow the gradients and give the same bits as "
    "waiting") {
    const auto expected = reference_synthetic(steps, 0.0);
    for (const auto* const device : {"cpu", "sim:64MiB"}) {
        for (const auto timing : {UpdateTiming::after_norm, UpdateTiming::as_completed}) {
            auto placement = starved(device);
            placement.timing = timing;
            CAPTURE(device, static_cast<int>(timing));
            CHECK(same_bits(run_once(placement, 0.0).masters, expected));
        }
    }
}

TEST_CASE("gradients clipped by value or tensor by tensor have the reference's bits anywhere") {
    SyntheticClip clip;
    const bool by_value = GENERATE(true, false);
    if (by_value)
        clip.value = 0.004f;
    else
        clip.layer = 0.02;
    CAPTURE(by_value);
    const auto expected = reference_synthetic(steps, clip);
    CHECK_FALSE(same_bits(expected, reference_synthetic(steps, 0.0)));
    for (const auto& placement : {SyntheticPlacement{}, starved("sim:64MiB")}) {
        const auto outcome = run_once(placement, clip);
        CHECK(same_bits(outcome.masters, expected));
        CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
    }
    if (by_value) {
        auto placement = starved("cpu");
        placement.timing = UpdateTiming::as_completed;
        CHECK(same_bits(run_once(placement, clip).masters, expected));
    }
}

TEST_CASE("whole tensors are measured with the gradients that they are moved by") {
    using Lamb = cpu_optim::LambHyperParameters;
    const SyntheticLayerwiseGroups groups{Lamb{.learning_rate = 0.02, .weight_decay = 0.1},
                                          Lamb{.learning_rate = 0.01}};
    SyntheticClip clip;
    clip.value = 0.004f;
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder.path() / "drive");
    SyntheticRun run;
    run.out = folder.path() / "out";
    run.nvme = folder.path() / "drive";
    run.steps = 2;
    run.placement = starved("cpu");
    run.placement.host_bytes = std::size_t{22} << 20;
    run.clip = clip;
    run.layerwise = groups;
    const auto outcome = run_synthetic(run);
    CHECK(outcome.plan.nvme_read_bytes_per_step > 0);
    CHECK(same_bits(outcome.masters, reference_synthetic(2, clip, groups)));
}

TEST_CASE("a step with a non-finite gradient changes nothing when skipped") {
    const std::vector<std::uint64_t> bad{1, 2};
    const auto outcome = run_once(starved("cpu"), 0.05, bad);
    CHECK(same_bits(outcome.masters, reference_synthetic(steps, 0.05, bad)));
    CHECK(outcome.updates == steps - bad.size());
    CHECK(std::isnan(outcome.norms[1]));
}

TEST_CASE("without waiting, a non-finite gradient stops the run and names the tensor") {
    auto placement = starved("cpu");
    placement.timing = UpdateTiming::as_completed;
    CHECK_THROWS_WITH(run_once(placement, 0.0, {2}), Catch::Contains("tensor.1"));
}

TEST_CASE("a run resumed in other memory goes on to the same bits") {
    const auto state = GENERATE(cpu_optim::StateFormat::fp32, cpu_optim::StateFormat::bf16,
                                cpu_optim::StateFormat::int8);
    CAPTURE(state_format_name(state));
    const auto expected = reference_synthetic(9, 0.05, {}, synthetic_adamw(), state);
    const TemporaryFolder folder;
    std::filesystem::create_directory(folder.path() / "drive");
    SyntheticRun run;
    run.out = folder.path() / "out";
    run.nvme = folder.path() / "drive";
    run.state = state;
    const std::vector<std::pair<std::string, std::size_t>> stages{
        {"cpu", 64}, {"sim:64MiB", 192}, {"cpu", 1024}, {"sim:64MiB", 64}};
    SyntheticOutcome outcome;
    std::uint64_t done = 0;
    for (const auto& [device, chunk_kib] : stages) {
        run.placement = starved(device);
        run.placement.host_bytes = (chunk_kib == 1024 ? std::size_t{300} : std::size_t{26}) << 20;
        run.placement.chunk_bytes = chunk_kib << 10;
        run.steps = done == 0 ? 2 : std::min<std::uint64_t>(done + 3, 9);
        outcome = run_synthetic(run);
        if (done != 0)
            CHECK(outcome.resumed_from == done);
        done = run.steps;
    }
    REQUIRE(done == 9);
    CHECK(same_bits(outcome.masters, expected));
}

TEST_CASE("without a drive a state that does not fit is refused with the bytes") {
    auto placement = starved("cpu");
    placement.nvme = false;
    CHECK_THROWS_AS(run_once(placement), PlanRefused);
}

TEST_CASE(
    "one copy on the drive gives the same bits, and a run that did not end cleanly is refused") {
    auto placement = starved("cpu");
    placement.durability = Durability::off;
    placement.commit_every = 2;
    CHECK(same_bits(run_once(placement).masters, reference_synthetic(steps, 0.05)));
}
