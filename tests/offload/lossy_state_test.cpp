// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// State in bf16 and int8 under the engine that owns its weights: each format is a run of its own,
// with one set of weights wherever it lives (P1), and is told apart from others by name.
#include <cstring>

#include <catch2/catch.hpp>

#include "offload/errors.h"
#include "tests/offload/synthetic_training.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::StateFormat;

namespace {

constexpr std::uint64_t steps = 4;
constexpr double clip = 0.05;

/// A run in a folder of its own.
class Workplace {
  public:
    explicit Workplace(StateFormat state) {
        std::filesystem::create_directory(folder_.path() / "drive");
        run.out = folder_.path() / "out";
        run.nvme = folder_.path() / "drive";
        run.steps = steps;
        run.clip = clip;
        run.state = state;
    }

  private:
    TemporaryFolder folder_;

  public:
    SyntheticRun run;
};

SyntheticOutcome run_once(StateFormat state, const SyntheticPlacement& placement,
                          const SyntheticGroups& groups = synthetic_adamw()) {
    Workplace place(state);
    place.run.placement = placement;
    place.run.groups = groups;
    return run_synthetic(place.run);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Small enough that most planes live on the drive.
SyntheticPlacement starved(const std::string& device) {
    SyntheticPlacement placement;
    placement.device = device;
    placement.host_bytes = std::size_t{19} << 20;
    placement.device_bytes = std::size_t{4} << 20;
    placement.chunk_bytes = std::size_t{64} << 10;
    return placement;
}

constexpr std::array lossy_formats{StateFormat::bf16, StateFormat::int8};

}  // namespace

TEST_CASE("lossy_state: planes and their bytes") {
    const auto rest = [](PlaneSet planes) {
        std::size_t bytes = 0;
        for (const auto plane : planes) {
            CHECK(tile_bytes(plane) % 4096 == 0);
            bytes += tile_bytes(plane);
        }
        return static_cast<double>(bytes) / tile_elements;
    };
    CHECK(rest(planes_with_weights(2)) == 12);
    CHECK(rest(planes_with_weights(2, StateFormat::bf16)) == 8);
    CHECK(rest(planes_with_weights(2, StateFormat::int8)) == 6.25);
    CHECK(rest(planes_with_weights(1, StateFormat::int8)) == 5.25);
    CHECK(rest(planes_with_weights(0, StateFormat::int8)) == 4);
    for (const auto format : cpu_optim::every_state_format) {
        for (std::size_t count = 1; count <= state_planes_in(format).size(); ++count) {
            CHECK(state_format_of(planes_with_weights(count, format)) == format);
            CHECK(state_plane_count(planes_with_weights(count, format)) == count);
        }
    }
    CHECK(state_format_of({Plane::weight, Plane::residue}) == StateFormat::fp32);
    CHECK(scales_offset_bytes(2) <= tile_bytes(Plane::scales));
}

TEST_CASE("lossy_state: every optimizer has the bits of its reference in every format") {
    using namespace cpu_optim;
    const std::vector<SyntheticGroups> all{
        synthetic_adamw(),
        {AdamHyperParameters{.nesterov = Nesterov::on},
         AdamHyperParameters{.nesterov = Nesterov::on}},
        {SgdHyperParameters{.learning_rate = 1e-2, .momentum = 0.9},
         SgdHyperParameters{.learning_rate = 1e-3, .momentum = 0.9}},
        {SgdHyperParameters{.learning_rate = 1e-2}, SgdHyperParameters{.learning_rate = 1e-3}},
        {LionHyperParameters{.weight_decay = 0.1}, LionHyperParameters{}},
        {AdagradHyperParameters{}, AdagradHyperParameters{.weight_decay = 0.1}},
        {RmspropHyperParameters{.momentum = 0.9}, RmspropHyperParameters{.momentum = 0.8}},
    };
    for (const auto format : lossy_formats) {
        for (const auto& groups : all) {
            CAPTURE(state_format_name(format), optimizer_name(groups.front()));
            const auto expected = reference_synthetic(steps, clip, {}, groups, format);
            const auto outcome = run_once(format, starved("sim:64MiB"), groups);
            CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
            CHECK(same_bits(outcome.masters, expected));
        }
    }
}

TEST_CASE("lossy_state: placement changes no bit") {
    for (const auto format : lossy_formats) {
        const auto expected = reference_synthetic(steps, clip, {}, synthetic_adamw(), format);
        for (const auto* const device : {"cpu", "sim:64MiB@2GB/s"}) {
            for (const std::size_t host_mib : {17u, 24u, 1024u}) {
                for (const std::size_t chunk_kib : {64u, 192u}) {
                    auto placement = starved(device);
                    placement.host_bytes = host_mib << 20;
                    placement.chunk_bytes = chunk_kib << 10;
                    placement.threads = 1 + host_mib % 16 % 2;
                    placement.commit_every = chunk_kib == 192 ? 2 : 0;
                    CAPTURE(state_format_name(format), device, host_mib, chunk_kib);
                    try {
                        const auto outcome = run_once(format, placement);
                        CHECK(same_bits(outcome.masters, expected));
                        CHECK(outcome.statistics.host_peak_bytes <= outcome.plan.host_bytes);
                    } catch (const PlanRefused& refused) {
                        CHECK(refused.needed_bytes > refused.available_bytes);
                        CHECK(host_mib < 1024);
                    }
                }
            }
        }
    }
}

TEST_CASE("lossy_state: instruction sets and the timing of updates change no bit") {
    for (const auto format : lossy_formats) {
        const auto expected = reference_synthetic(steps, 0, {}, synthetic_adamw(), format);
        for (const auto isa : cpu_optim::supported_isas()) {
            for (const auto timing : {UpdateTiming::after_norm, UpdateTiming::as_completed}) {
                Workplace place(format);
                place.run.clip = 0;
                place.run.placement = starved("cpu");
                place.run.placement.isa = isa;
                place.run.placement.timing = timing;
                CHECK(same_bits(run_synthetic(place.run).masters, expected));
            }
        }
    }
}

TEST_CASE("lossy_state: a starved run moves the bytes that its plan says, fewer in fewer bits") {
    std::uint64_t before = ~std::uint64_t{0};
    for (const auto format : cpu_optim::every_state_format) {
        auto placement = starved("cpu");
        placement.host_bytes = std::size_t{17} << 20;
        const auto outcome = run_once(format, placement);
        const auto& plan = outcome.plan;
        CHECK(outcome.statistics.nvme_written_bytes >= steps * plan.nvme_written_bytes_per_step);
        CHECK(plan.nvme_written_bytes_per_step > 0);
        CHECK(plan.nvme_written_bytes_per_step < before);
        before = plan.nvme_written_bytes_per_step;
    }
}

TEST_CASE("lossy_state: a run does not go on in another format") {
    for (const auto first : cpu_optim::every_state_format) {
        for (const auto second : cpu_optim::every_state_format) {
            if (first == second)
                continue;
            Workplace place(first);
            (void)run_synthetic(place.run);
            place.run.state = second;
            place.run.steps = steps + 1;
            const auto said = [](StateFormat format) {
                return Catch::Contains("state in " +
                                       std::string(cpu_optim::state_format_name(format)));
            };
            CHECK_THROWS_AS(run_synthetic(place.run), FolderRefused);
            CHECK_THROWS_WITH(run_synthetic(place.run), said(first) && said(second));
        }
    }
}
