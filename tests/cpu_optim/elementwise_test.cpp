// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cpu_optim/elementwise.h"

#include <deque>
#include <limits>
#include <stdexcept>

#include <catch2/catch.hpp>

#include "tests/cpu_optim/elementwise_cases.h"
#include "tests/cpu_optim/elementwise_planes.h"

namespace spillway::cpu_optim {
namespace {

using testing::every_gradient_type;
using testing::every_layout;
using testing::Expected;
using testing::MasterLayout;
using testing::Placement;
using testing::Planes;
using testing::StartValues;

const StartValues& start_values() {
    static const StartValues values(4097);
    return values;
}

/// A finite float of either sign from integers alone, so that it is the same on every machine.
float portable_sample(std::uint64_t stream, std::uint64_t n) {
    const std::uint64_t bits = testing::sample_bits(stream, n);
    const auto exponent = static_cast<std::uint32_t>(100 + (bits >> 40) % 32);
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits & 0x807FFFFFu) | exponent << 23);
}

/// FNV-1a, 64 bits.
class Fingerprint {
  public:
    void add(float value) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        for (int shift = 0; shift < 32; shift += 8)
            hash_ = (hash_ ^ ((bits >> shift) & 0xFFu)) * 0x100000001B3u;
    }
    [[nodiscard]] std::uint64_t value() const { return hash_; }

  private:
    std::uint64_t hash_ = 0xCBF29CE484222325u;
};

/// body(layout, gradient type) for all six.
template <typename Body>
void for_every_format(Body body) {
    for (const GradientType type : every_gradient_type)
        for (const MasterLayout layout : every_layout) {
            CAPTURE(type, layout);
            body(layout, type);
        }
}

/// The first elements of `planes` against the reference, and the count update_run returned.
void require_expected(const Planes& planes, const Expected& expected, MasterLayout layout,
                      std::size_t state_planes_used, std::size_t counted) {
    REQUIRE(expected.first_difference(planes, layout, state_planes_used) ==
            expected.elements.size());
    REQUIRE(counted == expected.counted(layout));
}

/// One rule at one step on runs of one length, at every place, in every format.
void require_reference_bits(Isa isa, const HyperParameters& hyper, std::uint64_t step,
                            std::deque<Planes>& placed, std::size_t length) {
    const auto coefficients = make_coefficients(hyper, step, 0.37);
    const std::size_t planes = state_planes(hyper);
    for (const GradientType type : every_gradient_type) {
        const Expected expected(coefficients, start_values(), type, length);
        for (const MasterLayout layout : every_layout)
            for (Planes& found : placed) {
                CAPTURE(type, layout);
                found.fill(start_values(), type);
                const auto counted = update_run(isa, coefficients, found.all(layout, type, planes));
                require_expected(found, expected, layout, planes, counted);
                REQUIRE(found.unharmed());
            }
    }
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("every rule has its reference's bits for any length, place and value", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    for (const std::size_t length : testing::awkward_lengths()) {
        if (length > start_values().master.size())
            continue;
        std::deque<Planes> placed;
        for (const Placement placement : testing::every_placement)
            placed.emplace_back(length, placement);
        for (const auto& [name, hyper] : testing::every_rule())
            for (const std::uint64_t step : {1u, 3u}) {
                CAPTURE(length, name, step);
                require_reference_bits(isa, hyper, step, placed, length);
            }
    }
}

TEMPLATE_TEST_CASE_SIG("AdamW keeps the bits that state folders have been trained with", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 1003;
    StartValues start(length);
    for (std::size_t i = 0; i < length; ++i) {
        start.master[i] = portable_sample(1, i);
        start.state[0][i] = portable_sample(2, i);
        start.state[1][i] = std::abs(portable_sample(3, i));
        start.gradient32[i] = portable_sample(4, i);
    }
    const AdamHyperParameters hyper{.learning_rate = 3e-3, .beta2 = 0.95, .weight_decay = 0.1};
    Planes planes(length, Placement::at_first_guard);
    planes.fill(start, GradientType::fp32);
    for (std::uint64_t step = 1; step <= 20; ++step)
        REQUIRE(update_run(isa, make_coefficients(hyper, step, 0.37),
                           planes.all(MasterLayout::halves, GradientType::fp32, 2)) == 0);
    Fingerprint fingerprint;
    for (std::size_t i = 0; i < length; ++i) {
        fingerprint.add(planes.master(MasterLayout::halves, i));
        fingerprint.add(planes.state(0, i));
        fingerprint.add(planes.state(1, i));
    }
    REQUIRE(fingerprint.value() == 0x4448B247E991A49Fu);
}

TEMPLATE_TEST_CASE_SIG("every rule has its reference's bits through a sweep of hyper-parameters",
                       "", ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 171;
    std::deque<Planes> placed;
    placed.emplace_back(length, Placement::one_past_guard);
    for (std::uint64_t n = 0; n < 1000; ++n) {
        const std::uint64_t step = 1 + testing::sample_bits(45, n) % 3;
        CAPTURE(n, step);
        require_reference_bits(isa, testing::sample_rule(n), step, placed, length);
    }
}

TEMPLATE_TEST_CASE_SIG("every rule has the same bits wherever a run is cut in two", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 67;
    Planes found(length, Placement::one_past_guard);
    for (const auto& [name, hyper] : testing::every_rule())
        for_every_format([&, &name = name, &hyper = hyper](MasterLayout layout, GradientType type) {
            const auto coefficients = make_coefficients(hyper, 1, 1.0);
            const std::size_t planes = state_planes(hyper);
            const Expected expected(coefficients, start_values(), type, length);
            for (std::size_t cut = 0; cut <= length; ++cut) {
                CAPTURE(name, cut);
                found.fill(start_values(), type);
                std::size_t counted =
                    update_run(isa, coefficients, found.run(layout, type, planes, 0, cut));
                counted += update_run(isa, coefficients,
                                      found.run(layout, type, planes, cut, length - cut));
                require_expected(found, expected, layout, planes, counted);
            }
        });
}

TEMPLATE_TEST_CASE_SIG("every rule has the same bits in pieces of any size", "", ((Isa isa), isa),
                       Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 4096 + 3;
    Planes found(length, Placement::at_second_guard);
    for (const auto& [name, hyper] : testing::every_rule())
        for_every_format([&, &name = name, &hyper = hyper](MasterLayout layout, GradientType type) {
            const auto coefficients = make_coefficients(hyper, 2, 1.0);
            const std::size_t planes = state_planes(hyper);
            const Expected expected(coefficients, start_values(), type, length);
            for (const std::size_t piece : {1UL, 7UL, 16UL, 33UL, 1024UL}) {
                CAPTURE(name, piece);
                found.fill(start_values(), type);
                std::size_t counted = 0;
                for (std::size_t from = 0; from < length; from += piece) {
                    const std::size_t elements = std::min(piece, length - from);
                    counted += update_run(isa, coefficients,
                                          found.run(layout, type, planes, from, elements));
                }
                require_expected(found, expected, layout, planes, counted);
            }
        });
}

TEMPLATE_TEST_CASE_SIG("every new master that is not finite is counted, and a NaN stays one", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 103;
    const auto nan = std::numeric_limits<float>::quiet_NaN();
    for (const auto& [name, hyper] : testing::every_rule())
        for (const std::size_t place : {std::size_t{0}, length / 2, length - 1}) {
            CAPTURE(name, place);
            std::vector<float> master(length, 0.5F), gradient(length, 0.25F);
            std::array<std::vector<float>, most_state_planes> state;
            ElementwiseRun run{.elements = length, .master = master.data()};
            run.gradient = gradient.data();
            for (std::size_t plane = 0; plane < state_planes(hyper); ++plane) {
                state[plane].resize(length);
                run.state[plane] = state[plane].data();
            }
            gradient[place] = nan;
            REQUIRE(update_run(isa, make_coefficients(hyper, 1, 1.0), run) == 1);
            REQUIRE(std::isnan(master[place]));
            gradient[place] = 0.25F;
            REQUIRE(update_run(isa, make_coefficients(hyper, 2, 1.0), run) == 1);
            REQUIRE(std::isnan(master[place]));
        }
}

TEMPLATE_TEST_CASE_SIG("the largest masters are counted by what their layout can hold", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 35;
    const auto coefficients = make_coefficients(SgdHyperParameters{}, 1, 1.0);
    const float last_half = std::bit_cast<float>(0x7F7F7FFFu);
    const std::array<float, 4> values{last_half, -std::bit_cast<float>(0x7F7F8000u),
                                      std::numeric_limits<float>::max(),
                                      -std::numeric_limits<float>::infinity()};
    StartValues start(length);
    std::ranges::fill(start.gradient32, 0.0F);
    for (std::size_t i = 0; i < length; ++i)
        start.master[i] = values[i % values.size()];
    Planes found(length, Placement::at_first_guard);
    found.fill(start, GradientType::fp32);
    const auto whole = found.all(MasterLayout::whole, GradientType::fp32, 0);
    const auto halves = found.all(MasterLayout::halves, GradientType::fp32, 0);
    REQUIRE(update_run(isa, coefficients, whole) == 8);
    REQUIRE(update_run(isa, coefficients, halves) == 8 + 2 * 9);
}

TEMPLATE_TEST_CASE_SIG("a switch that is off leaves no trace of infinite weights or old state", "",
                       ((Isa isa), isa), Isa::scalar, Isa::avx2, Isa::avx512) {
    if (!testing::runs_or_skips(isa))
        return;
    constexpr std::size_t length = 33;
    const float infinity = std::numeric_limits<float>::infinity();
    for (const float left : {infinity, std::nanf(""), -0.0F, 7.0F}) {
        std::vector<float> master(length, infinity), gradient(length, -0.0F);
        std::vector<float> buffer(length, left);
        ElementwiseRun run{.elements = length, .master = master.data()};
        run.state[0] = buffer.data();
        run.gradient = gradient.data();
        const SgdHyperParameters momentum{.momentum = 0.9, .dampening = 0.5};
        REQUIRE(update_run(isa, make_coefficients(momentum, 1, 1.0), run) == length);
        for (std::size_t i = 0; i < length; ++i) {
            REQUIRE(master[i] == infinity);
            REQUIRE((buffer[i] == 0 && std::signbit(buffer[i])));
        }
    }
}

TEST_CASE("update_run refuses a run with planes missing before it changes anything") {
    std::vector<float> master(3, 1.0F), m(3), gradient(3, 1.0F);
    std::vector<std::uint16_t> weight(3);
    const auto coefficients = make_coefficients(AdamHyperParameters{}, 1, 1.0);
    ElementwiseRun run{.elements = 3, .master = master.data()};
    run.state[0] = m.data();
    run.gradient = gradient.data();
    REQUIRE_THROWS_WITH(update_run(best_isa(), coefficients, run),
                        "update_run: state[1] is null and this rule keeps 2 planes of state: set "
                        "them all");
    run.state[1] = m.data();
    run.gradient = nullptr;
    REQUIRE_THROWS_WITH(update_run(best_isa(), coefficients, run),
                        "update_run: gradient is null: set it");
    run.gradient = gradient.data();
    run.weight = weight.data();
    REQUIRE_THROWS_WITH(update_run(best_isa(), coefficients, run),
                        "update_run: master is set, weight is set, residue is null: set either "
                        "master, or weight and residue");
    run.master = nullptr;
    REQUIRE_THROWS_AS(update_run(best_isa(), coefficients, run), std::invalid_argument);
    REQUIRE(master == std::vector<float>(3, 1.0F));
    REQUIRE(update_run(best_isa(), coefficients, ElementwiseRun{}) == 0);
}

}  // namespace spillway::cpu_optim
