// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/adafactor.h"

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/adafactor_reference.h"
#include "cpu_optim/detail/exponential.h"
#include "tests/cpu_optim/adafactor_tensor.h"
#include "tests/cpu_optim/elementwise_planes.h"

namespace spillway::cpu_optim {
namespace {

using testing::AdafactorStep;
using testing::BandOrder;
using testing::Cutting;
using testing::every_gradient_type;
using testing::every_layout;
using testing::GuardedBuffer;
using testing::MasterLayout;
using testing::Placement;
using testing::Planes;
using testing::StartValues;

/// No shape of a test has more elements.
constexpr std::size_t most_elements = 600 * 70;

/// Of either sign, from 1e-8 to 1e3, with zeros and subnormals among them. With a value that is not
/// finite, or whose square is more than a float holds, no step can be taken: such halves become 0.
const StartValues& start_values() {
    static const StartValues values = [] {
        StartValues start(most_elements);
        for (std::size_t i = 0; i < most_elements; ++i) {
            start.master[i] = testing::sample_magnitude(91, i, 1e-6, 1e1);
            start.gradient32[i] = i % 17 == 3 ? 0.0F : testing::sample_magnitude(92, i, 1e-8, 1e3);
            if (i % 29 == 5)
                start.gradient32[i] = 0x1p-140F;
            start.state[0][i] = std::abs(testing::sample_magnitude(93, i, 1e-12, 1e3));
            for (auto& halves : start.gradient16)
                if ((halves[i] & 0x7FFFu) >= 0x5000u)
                    halves[i] = 0;
        }
        return start;
    }();
    return values;
}

std::vector<AdafactorStep> every_step() {
    return {{.hyper = {}, .number = 1},
            {.hyper = {}, .number = 7, .gradient_scale = 0.37},
            {.hyper = {.learning_rate = 0.3,
                       .beta2_decay = -0.5,
                       .epsilon1 = 1e-4,
                       .epsilon2 = 0.5,
                       .clip_threshold = 3,
                       .weight_decay = 0.1,
                       .objective = Objective::maximise},
             .number = 2}};
}

/// 0, 1, odd, less and more than a block of lanes and than a band of rows.
constexpr MatrixShape shapes[] = {{0, 5},   {5, 0},    {1, 1},    {1, 37},  {37, 1},  {3, 5},
                                  {2, 16},  {5, 17},   {7, 31},   {16, 16}, {33, 48}, {255, 3},
                                  {256, 8}, {257, 19}, {600, 70}, {2, 1001}};

std::vector<float> floats_of(const StartValues& start, GradientType type, std::size_t count) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i)
        values[i] = detail::gradient_element(start.gradient(type), type, i);
    return values;
}

std::vector<float> first_of(const std::vector<float>& values, std::size_t count) {
    return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)};
}

std::size_t differences(const auto& found, const std::vector<float>& expected) {
    std::size_t different = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
        different +=
            std::bit_cast<std::uint32_t>(found(i)) == std::bit_cast<std::uint32_t>(expected[i])
                ? 0u
                : 1u;
    return different;
}

/// One matrix between guard pages, stepped by the kernels and by the definition.
void require_matrix(Isa isa, const AdafactorStep& at, const MatrixShape& shape, GradientType type,
                    MasterLayout layout, Placement placement, const Cutting& cutting) {
    const StartValues& start = start_values();
    const std::size_t elements = shape.rows * shape.columns;
    auto weights = first_of(start.master, elements);
    const auto gradient = floats_of(start, type, elements);
    auto rows = first_of(start.state[0], shape.rows);
    auto columns = first_of(start.state[0], shape.columns);

    Planes planes(elements, placement);
    planes.fill(start, type);
    GuardedBuffer<float> row_plane(shape.rows, placement), column_plane(shape.columns, placement);
    std::ranges::copy(rows, row_plane.span().begin());
    std::ranges::copy(columns, column_plane.span().begin());
    const auto counted = testing::step_matrix(
        isa, at, shape,
        [&](std::size_t first, std::size_t n) { return planes.run(layout, type, 0, first, n); },
        row_plane.span().data(), column_plane.span().data(), cutting);
    adafactor_by_definition(at.hyper, at.number, at.gradient_scale,
                            AdafactorMatrix{shape, weights, rows, columns, gradient});
    REQUIRE(counted == 0);
    REQUIRE(differences([&](auto i) { return planes.master(layout, i); }, weights) == 0);
    REQUIRE(differences([&](auto i) { return row_plane.span()[i]; }, rows) == 0);
    REQUIRE(differences([&](auto i) { return column_plane.span()[i]; }, columns) == 0);
    REQUIRE((planes.unharmed() && row_plane.unharmed() && column_plane.unharmed()));
}

void require_vector(Isa isa, const AdafactorStep& at, GradientType type, MasterLayout layout,
                    Planes& planes, std::size_t elements, const Cutting& cutting) {
    const StartValues& start = start_values();
    auto weights = first_of(start.master, elements);
    auto variances = first_of(start.state[0], elements);
    const auto gradient = floats_of(start, type, elements);
    planes.fill(start, type);
    const auto counted = testing::step_vector(
        isa, at, elements,
        [&](std::size_t first, std::size_t n) { return planes.run(layout, type, 1, first, n); },
        cutting);
    adafactor_by_definition(at.hyper, at.number, at.gradient_scale,
                            AdafactorVector{weights, variances, gradient});
    REQUIRE(counted == 0);
    REQUIRE(differences([&](auto i) { return planes.master(layout, i); }, weights) == 0);
    REQUIRE(differences([&](auto i) { return planes.state(0, i); }, variances) == 0);
    REQUIRE(planes.unharmed());
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("Adafactor's matrices have their definition's bits for any shape and place",
                       "", ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const MatrixShape& shape : shapes)
        for (const AdafactorStep& at : every_step())
            for (const GradientType type : every_gradient_type)
                for (const MasterLayout layout : every_layout)
                    for (const Placement placement : testing::every_placement) {
                        CAPTURE(shape.rows, shape.columns, at.number, type, layout, placement);
                        require_matrix(isa, at, shape, type, layout, placement,
                                       {most_elements, BandOrder::forward});
                    }
}

TEMPLATE_TEST_CASE_SIG("Adafactor's bits do not depend on runs and on the order of bands", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const MatrixShape& shape : {MatrixShape{600, 70}, MatrixShape{257, 19}})
        for (const std::size_t run : {1UL, 7UL, 16UL, 33UL, 71UL, 1024UL})
            for (const BandOrder order : {BandOrder::forward, BandOrder::backward}) {
                CAPTURE(shape.rows, run, order);
                require_matrix(isa, every_step()[2], shape, GradientType::bf16,
                               MasterLayout::halves, Placement::one_past_guard, {run, order});
            }
    Planes planes(4097, Placement::one_past_guard);
    for (const std::size_t run : {1UL, 7UL, 16UL, 33UL, 1024UL})
        require_vector(isa, every_step()[2], GradientType::fp16, MasterLayout::halves, planes, 4097,
                       {run, BandOrder::forward});
}

TEMPLATE_TEST_CASE_SIG("Adafactor's vectors have their definition's bits for any length and place",
                       "", ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : testing::awkward_lengths()) {
        if (length > 4097)
            continue;
        for (const Placement placement : testing::every_placement) {
            Planes planes(length, placement);
            for (const AdafactorStep& at : every_step())
                for (const GradientType type : every_gradient_type)
                    for (const MasterLayout layout : every_layout) {
                        CAPTURE(length, placement, at.number, type, layout);
                        require_vector(isa, at, type, layout, planes, length,
                                       {most_elements, BandOrder::forward});
                    }
        }
    }
}

TEMPLATE_TEST_CASE_SIG("a vector of more than a band takes its bands in any order", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 2 * adafactor_band_elements + 77;
    std::vector<float> weights(length), variances(length, 0.0F), gradient(length);
    for (std::size_t i = 0; i < length; ++i) {
        weights[i] = start_values().master[i % most_elements];
        gradient[i] = start_values().gradient32[i % most_elements];
    }
    auto expected = weights;
    auto expected_variances = variances;
    const AdafactorStep at{.hyper = {}, .number = 3};
    const auto run_of = [&](std::size_t first, std::size_t elements) {
        ElementwiseRun run{.elements = elements, .master = weights.data() + first};
        run.state[0] = variances.data() + first;
        run.gradient = gradient.data() + first;
        return run;
    };
    REQUIRE(testing::step_vector(isa, at, length, run_of, {65'537, BandOrder::backward}) == 0);
    adafactor_by_definition(at.hyper, at.number, at.gradient_scale,
                            AdafactorVector{expected, expected_variances, gradient});
    CHECK(testing::first_difference<float>(weights, expected) == length);
    CHECK(testing::first_difference<float>(variances, expected_variances) == length);
}

TEMPLATE_TEST_CASE_SIG("values that are not finite reach the sums, and the step is refused", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 37;
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")})
        for (const std::size_t place : {std::size_t{0}, length / 2, length - 1}) {
            std::vector<float> weights(length, 1.0F), gradient(length, 1.0F), rows(1),
                columns(length);
            gradient[place] = bad;
            const auto run_of = [&](std::size_t first, std::size_t elements) {
                ElementwiseRun run{.elements = elements, .master = weights.data() + first};
                run.gradient = gradient.data() + first;
                return run;
            };
            CHECK_THROWS_AS(testing::step_matrix(isa, {}, {1, length}, run_of, rows.data(),
                                                 columns.data(), {length, BandOrder::forward}),
                            std::invalid_argument);
            CHECK(weights == std::vector<float>(length, 1.0F));
        }
}

TEMPLATE_TEST_CASE_SIG("a weight that the last pass makes infinite is counted", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 35;
    const float largest = std::numeric_limits<float>::max();
    std::vector<float> weights(length, -largest), variances(length, 1.0F), gradient(length, 1.0F);
    gradient[34] = -1.0F;
    ElementwiseRun run{.elements = length, .master = weights.data()};
    run.state[0] = variances.data();
    run.gradient = gradient.data();
    CHECK(apply_variance(isa, make_coefficients(AdafactorHyperParameters{}, 1, 1), largest, run) ==
          length - 1);
    CHECK(weights[0] == -std::numeric_limits<float>::infinity());
    CHECK(weights[34] == 0);
}

TEST_CASE("powers of a step are those of the library of functions to 14 digits") {
    for (const double exponent : {0.0, -0.1, -0.5, -0.8, -1.0, -2.0})
        for (const std::uint64_t step : {1UL, 2UL, 3UL, 10UL, 999UL, 1'000'000UL, 1UL << 40})
            CHECK(detail::step_power(step, exponent) ==
                  Approx(std::pow(static_cast<double>(step), exponent)).epsilon(1e-14).margin(0));
    CHECK(detail::step_power(1, -0.8) == 1);
    CHECK(detail::step_power(2, -1e9) == 0);
}

TEST_CASE("Adafactor's step is alpha over the clipping of the update") {
    const AdafactorHyperParameters hyper{.learning_rate = 0.5, .clip_threshold = 2};
    CHECK(adafactor_step(hyper, 1, 4, {16, 4}) == 0.5F * 2);
    CHECK(adafactor_step(hyper, 16, 4, {16, 4}) == 0.25F * 2);
    CHECK(adafactor_step(hyper, 1, 4, {16, 64}) == 0.5F * 2 / 2);
    CHECK(adafactor_step(hyper, 1, 4, {0, 0}) == static_cast<float>(0.5 * 1e-3));
    CHECK(adafactor_step(hyper, 1, 0, {0, 0}) == static_cast<float>(0.5 * 1e-3));
    CHECK_THROWS_WITH(adafactor_step(hyper, 1, 4, {std::nan(""), 1}),
                      "Adafactor: the weights' sum of squares is nan and must be a finite number");
}

TEST_CASE("Adafactor's hyper-parameters out of range are refused with name and range") {
    const auto refusal = [](const AdafactorHyperParameters& hyper) -> std::string {
        try {
            static_cast<void>(make_coefficients(hyper, 1, 1.0));
        } catch (const std::invalid_argument& error) {
            return error.what();
        }
        return "accepted";
    };
    CHECK(refusal({}) == "accepted");
    CHECK(refusal({.beta2_decay = 0.1}) ==
          "Adafactor: beta2_decay is 0.1 and must be a finite number, 0 or less");
    CHECK(refusal({.clip_threshold = 0.5}) ==
          "Adafactor: clip_threshold is 0.5 and must be 1 or more");
    CHECK(refusal({.learning_rate = -1}).starts_with("Adafactor: learning_rate"));
    CHECK(refusal({.epsilon1 = -1}).starts_with("Adafactor: epsilon1"));
    CHECK(refusal({.epsilon2 = std::nan("")}).starts_with("Adafactor: epsilon2"));
    CHECK(refusal({.weight_decay = -1}).starts_with("Adafactor: weight_decay"));
    CHECK_THROWS_AS(make_coefficients(AdafactorHyperParameters{}, 0, 1.0), std::invalid_argument);
    CHECK_THROWS_AS(make_coefficients(AdafactorHyperParameters{}, 1, -1.0), std::invalid_argument);
}

TEST_CASE("Adafactor says what it needs of memory and of a tensor") {
    const auto factored = needs(AdafactorHyperParameters{}, SecondMoment::factored);
    CHECK(
        (factored.state_planes == 0 && factored.row_vectors == 1 && factored.column_vectors == 1));
    CHECK((factored.passes == 3 && factored.gradient_passes == 3));
    CHECK(factored.reach == Reach::tensor);
    const auto whole = needs(AdafactorHyperParameters{}, SecondMoment::whole);
    CHECK((whole.state_planes == 1 && whole.row_vectors == 0 && whole.column_vectors == 0));
    CHECK((whole.passes == 2 && whole.reach == Reach::tensor));
}

TEST_CASE("Adafactor's passes refuse a run with planes missing before they change anything") {
    std::vector<float> weights(3, 1.0F), gradient(3, 1.0F);
    const auto c = make_coefficients(AdafactorHyperParameters{}, 1, 1.0);
    ElementwiseRun run{.elements = 3, .master = weights.data()};
    BandSums sums;
    VectorSums vector_sums;
    CHECK_THROWS_WITH(sum_squares(best_isa(), c, {3, 0, run}, sums),
                      "sum_squares: gradient is null: set it");
    LaneSum updates;
    CHECK_THROWS_WITH(sum_updates(best_isa(), c, {3, 0, run}, {}, updates),
                      "sum_updates: gradient is null: set it");
    run.gradient = gradient.data();
    CHECK_THROWS_WITH(apply_variance(best_isa(), c, 1, run),
                      "apply_variance: state[0] is null and this rule keeps 1 planes of state: set "
                      "them all");
    CHECK_THROWS_AS(prepare_variance(best_isa(), c, 0, run, vector_sums), std::invalid_argument);
    run.master = nullptr;
    CHECK_THROWS_AS(apply_factored(best_isa(), c, 1, {3, 0, run}, {}), std::invalid_argument);
    CHECK(weights == std::vector<float>(3, 1.0F));
}

}  // namespace spillway::cpu_optim
