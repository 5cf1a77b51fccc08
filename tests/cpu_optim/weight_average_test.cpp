// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/weight_average.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/split_master.h"
#include "tests/cpu_optim/bounded.h"
#include "tests/cpu_optim/guarded_buffer.h"
#include "tests/cpu_optim/sample_values.h"

namespace spillway::cpu_optim {
namespace {

using testing::Bounded;
using testing::GuardedBuffer;
using testing::Placement;

/// Masters in both forms and an average, between guard pages.
class AveragePlanes {
  public:
    AveragePlanes(std::size_t elements, Placement placement)
        : master(elements, placement),
          weight(elements, placement),
          residue(elements, placement),
          average(elements, placement) {}

    void fill() {
        for (std::size_t i = 0; i < master.span().size(); ++i) {
            const float value = testing::sample_any(61, i);
            const SplitWeight halves = split(value);
            master.span()[i] = value;
            weight.span()[i] = halves.hi;
            residue.span()[i] = halves.lo;
            average.span()[i] = testing::sample_any(62, i);
        }
    }
    [[nodiscard]] AverageRun whole(std::size_t from, std::size_t elements) const {
        return {.elements = elements,
                .master = master.span().data() + from,
                .average = average.span().data() + from};
    }
    [[nodiscard]] AverageRun halves(std::size_t from, std::size_t elements) const {
        return {.elements = elements,
                .weight = weight.span().data() + from,
                .residue = residue.span().data() + from,
                .average = average.span().data() + from};
    }
    [[nodiscard]] bool unharmed() const {
        return master.unharmed() && weight.unharmed() && residue.unharmed() && average.unharmed();
    }

    GuardedBuffer<float> master;
    GuardedBuffer<std::uint16_t> weight;
    GuardedBuffer<std::int16_t> residue;
    GuardedBuffer<float> average;
};

std::vector<float> expected_averages(const AverageCoefficients& coefficients,
                                     std::size_t elements) {
    std::vector<float> expected(elements);
    for (std::size_t i = 0; i < elements; ++i)
        expected[i] =
            averaged(coefficients, testing::sample_any(62, i), testing::sample_any(61, i));
    return expected;
}

/// Runs of one length at one place, both master forms, cut in two at `cut`.
void require_expected(Isa isa, const AverageCoefficients& coefficients, std::size_t length,
                      Placement placement, std::size_t cut) {
    const auto expected = expected_averages(coefficients, length);
    AveragePlanes planes(length, placement);
    for (const bool is_split : {false, true}) {
        CAPTURE(length, placement, cut, is_split);
        planes.fill();
        const auto run = [&](std::size_t from, std::size_t elements) {
            return is_split ? planes.halves(from, elements) : planes.whole(from, elements);
        };
        update_average(isa, coefficients, run(0, cut));
        update_average(isa, coefficients, run(cut, length - cut));
        REQUIRE(testing::first_difference<float>(planes.average.span(), expected) == length);
        REQUIRE(planes.unharmed());
    }
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("an average has its reference's bits for any length, place and value", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : testing::awkward_lengths())
        for (const Placement placement : testing::every_placement)
            for (const std::uint64_t averaged : {0u, 7u})
                require_expected(isa, make_average_coefficients(EmaParameters{}, averaged), length,
                                 placement, 0);
}

TEMPLATE_TEST_CASE_SIG("an average has the same bits wherever a run is cut in two", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (std::size_t cut = 0; cut <= 67; ++cut)
        require_expected(isa, make_average_coefficients(SwaParameters{}, 3), 67,
                         Placement::one_past_guard, cut);
}

TEMPLATE_TEST_CASE_SIG("averages over 300 updates follow their definitions in double", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 19;
    constexpr std::uint64_t updates = 300;
    for (const AverageParameters& parameters :
         {AverageParameters(EmaParameters{.decay = 0.95}), AverageParameters(SwaParameters{})}) {
        const bool is_swa = std::holds_alternative<SwaParameters>(parameters);
        std::vector<float> master(length);
        std::vector<float> average(length, std::numeric_limits<float>::quiet_NaN());
        std::vector<Bounded> expected(length);
        std::vector<double> sum(length);
        for (std::uint64_t n = 0; n < updates; ++n) {
            for (std::size_t i = 0; i < length; ++i)
                master[i] = testing::sample_magnitude(63, n * length + i, 1e-6, 10);
            update_average(
                isa, make_average_coefficients(parameters, n),
                {.elements = length, .master = master.data(), .average = average.data()});
            const double share = is_swa ? 1 / (static_cast<double>(n) + 1) : 0.05;
            for (std::size_t i = 0; i < length; ++i) {
                sum[i] += master[i];
                const Bounded weight = testing::exactly(master[i]);
                expected[i] = n == 0 ? weight : testing::mixed(expected[i], weight, share);
                CAPTURE(is_swa, n, i);
                if (n == 0)
                    REQUIRE(average[i] == master[i]);
                else
                    REQUIRE(testing::distance(average[i], expected[i]) <= 1);
                REQUIRE(expected[i].error <= 1e-5);
            }
        }
        for (std::size_t i = 0; is_swa && i < length; ++i)
            CHECK(average[i] == Approx(sum[i] / updates).margin(1e-5).epsilon(0));
    }
}

TEST_CASE("shares are torch's: 1 - decay, 1 / (n + 1), and the first is a copy") {
    CHECK(make_average_coefficients(EmaParameters{}, 1).share == static_cast<float>(1 - 0.999));
    CHECK(make_average_coefficients(SwaParameters{}, 3).share == 0.25F);
    CHECK(make_average_coefficients(SwaParameters{}, 1).starts == Term::off);
    CHECK(make_average_coefficients(EmaParameters{}, 0).starts == Term::on);
    for (const double decay : {-0.1, 1.1, std::nan("")})
        CHECK_THROWS_AS(make_average_coefficients(EmaParameters{.decay = decay}, 1),
                        std::invalid_argument);
    CHECK_THROWS_WITH(make_average_coefficients(EmaParameters{.decay = 2}, 1),
                      "EMA: decay is 2 and must be at least 0 and at most 1");
    CHECK(make_average_coefficients(EmaParameters{.decay = 1}, 1).share == 0);
}

TEST_CASE("update_average refuses a run with planes missing before it changes anything") {
    std::vector<float> master(3, 1.0F), average(3, 2.0F);
    const auto coefficients = make_average_coefficients(EmaParameters{}, 0);
    AverageRun run{.elements = 3, .average = average.data()};
    CHECK_THROWS_WITH(update_average(best_isa(), coefficients, run),
                      "update_average: master is null, weight is null, residue is null: set either "
                      "master, or weight and residue");
    run.master = master.data();
    run.average = nullptr;
    CHECK_THROWS_WITH(update_average(best_isa(), coefficients, run),
                      "update_average: average is null: set it");
    CHECK(average == std::vector<float>(3, 2.0F));
    update_average(best_isa(), coefficients, {});
}

}  // namespace spillway::cpu_optim
