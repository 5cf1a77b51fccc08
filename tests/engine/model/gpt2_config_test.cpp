// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_config.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <catch2/catch.hpp>

#include "tests/engine/compute/compute_support.h"

namespace spillway::engine {
namespace {

using Catch::Matchers::Contains;

Gpt2Config small() {
    Gpt2Config config = parse_gpt2("gpt2:2x64x4");
    resolve(config);
    return config;
}

}  // namespace

TEST_CASE("gpt2_config: a model is parsed, and what is no model is refused by name") {
    const Gpt2Config config = parse_gpt2("gpt2:12x768x12");
    CHECK(config.layers == 12);
    CHECK(config.hidden == 768);
    CHECK(config.heads == 12);
    for (const char* text : {"gpt3:1x8x1", "gpt2:", "gpt2:12", "gpt2:12x768", "gpt2:12x768x",
                             "gpt2:12x768x12x", "gpt2:12x768x12 ", "gpt2:-1x8x1", "gpt2:1xx1",
                             "gpt2:99999999999x8x1", "gpt2:1x8x1.5", ""}) {
        INFO(text);
        CHECK_THROWS_WITH(parse_gpt2(text), Contains(text) && Contains("LAYERSxHIDDENxHEADS"));
    }
}

TEST_CASE("gpt2_config: a number that is too large is called so") {
    CHECK_THROWS_WITH(parse_gpt2("gpt2:99999999999x8x1"), Contains("too large"));
}

TEST_CASE("gpt2_config: sizes that make no model are refused") {
    const auto refused = [](auto change, const char* why) {
        Gpt2Config config = small();
        change(config);
        CHECK_THROWS_WITH(resolve(config), Contains(why));
    };
    refused([](Gpt2Config& c) { c.layers = 0; }, "0 layers");
    refused([](Gpt2Config& c) { c.layers = 10'001; }, "10001 layers; it must have 1 to 10000");
    refused([](Gpt2Config& c) { c.hidden = 0; }, "hidden is 0");
    refused([](Gpt2Config& c) { c.vocabulary = 1 << 25; }, "vocabulary is 33554432");
    refused([](Gpt2Config& c) { c.context = 1 << 25; }, "context is 33554432");
    refused(
        [](Gpt2Config& c) {
            c.layers = 10'000;
            c.hidden = 1 << 20;
        },
        "parameters; the most is 2^48");
    refused([](Gpt2Config& c) { c.heads = 0; }, "0 heads");
    refused([](Gpt2Config& c) { c.heads = 5; }, "multiple of heads");
    refused([](Gpt2Config& c) { c.vocabulary = 0; }, "vocabulary is 0");
    refused([](Gpt2Config& c) { c.context = 0; }, "context is 0");
    Gpt2Config config = small();
    CHECK(config.feed_forward == 256);
    config.feed_forward = 100;
    resolve(config);
    CHECK(config.feed_forward == 100);
}

TEST_CASE("gpt2_config: GPT-2 small has the parameters of the published one") {
    Gpt2Config config = parse_gpt2("gpt2:12x768x12");
    config.vocabulary = 50257;
    resolve(config);
    CHECK(offload::ElementOrder(gpt2_tensors(config)).parameters() == 124439808);
}

TEST_CASE("gpt2_config: units cover all tensors once, and uses name every unit") {
    const Gpt2Config config = small();
    const auto tensors = gpt2_tensors(config);
    const auto units = gpt2_units(config);
    std::size_t next = 0;
    for (const auto& unit : units) {
        CHECK(unit.first_tensor == next);
        next += unit.tensor_count;
    }
    CHECK(next == tensors.size());
    CHECK(tensors[0].contributions == 2);
    CHECK(std::count_if(tensors.begin(), tensors.end(),
                        [](const auto& tensor) { return tensor.contributions != 1; }) == 1);
    CHECK(tensors[2].name == "transformer.h.0.ln_1.weight");
    CHECK(tensors[12].name == "transformer.h.0.mlp.c_proj.weight");
    CHECK(tensors[12].shape == std::vector<std::uint64_t>{64, 256});
    CHECK(tensors[13].group == static_cast<std::uint32_t>(DecayGroup::not_decayed));
    CHECK(gpt2_evaluation_uses(config) == std::vector<std::size_t>{0, 1, 2, 3, 4, 0});
    CHECK(gpt2_training_uses(config) == std::vector<std::size_t>{0, 1, 2, 3, 4, 0, 3, 2});
    CHECK(gpt2_training_uses(config, {1}) == std::vector<std::size_t>{0, 1, 2, 3, 4, 0, 2, 3, 2});
}

TEST_CASE("gpt2_initial_values: they do not depend on how a tensor is cut") {
    const Gpt2Config config = small();
    testing::Floats whole(3 * 64 * 64);
    gpt2_initial_values(config, 5, 4, 0, whole);
    for (const std::size_t size : {1u, 7u, 64u, 1000u}) {
        testing::Floats pieces(whole.size());
        for (std::size_t at = 0; at < pieces.size(); at += size)
            gpt2_initial_values(config, 5, 4, at,
                                std::span(pieces).subspan(at, std::min(size, pieces.size() - at)));
        CHECK(testing::same_bits(pieces, whole));
    }
}

TEST_CASE("gpt2_initial_values: normal with the right deviation, independent of each other") {
    Gpt2Config config = small();
    config.hidden = 512;
    config.feed_forward = 0;
    resolve(config);
    const auto values = [&](std::uint64_t seed, offload::TensorId tensor, std::size_t count) {
        testing::Floats out(count);
        gpt2_initial_values(config, seed, tensor, 0, out);
        return out;
    };
    constexpr std::size_t count = 512 * 512;
    const auto correlation = [](const testing::Floats& a, const testing::Floats& b) {
        double sum = 0;
        for (std::size_t i = 0; i < a.size(); ++i)
            sum += static_cast<double>(a[i]) * static_cast<double>(b[i]) / 4e-4;
        return sum / static_cast<double>(a.size());
    };
    const auto base = values(1, 4, count);
    double mean = 0;
    std::size_t beyond_2 = 0;
    for (const float value : base) {
        mean += static_cast<double>(value) / static_cast<double>(count);
        beyond_2 += std::abs(value) > 0.04f;
    }
    // One deviation of a mean of 2^18 numbers is 1 / 512 of theirs; 4.6 % lie beyond two.
    CHECK(std::abs(mean) < 4 * 0.02 / 512);
    CHECK(correlation(base, base) == Approx(1.0).epsilon(0.012));
    CHECK(static_cast<double>(beyond_2) / count == Approx(0.0455).epsilon(0.04));
    CHECK(std::abs(correlation(base, values(2, 4, count))) < 4.0 / 512);
    CHECK(std::abs(correlation(base, values(1, 16, count))) < 4.0 / 512);
    testing::Floats shifted(base.begin() + 1, base.end());
    shifted.push_back(base[0]);
    CHECK(std::abs(correlation(base, shifted)) < 4.0 / 512);
    // Tensor 6 is a projection into the residual stream of a model of two layers.
    const auto projection = values(1, 6, count);
    CHECK(correlation(projection, projection) == Approx(0.25).epsilon(0.012));
    for (const float value : values(1, 2, 512))
        CHECK(value == 1.0f);
    for (const float value : values(1, 3, 512))
        CHECK(value == 0.0f);
}

TEST_CASE("gpt2_initial_values: elements outside the tensor are refused") {
    testing::Floats out(2);
    CHECK_THROWS_AS(gpt2_initial_values(small(), 1, 2, 63, out), std::invalid_argument);
    CHECK_THROWS_AS(gpt2_initial_values(small(), 1, 99, 0, out), std::invalid_argument);
}

}  // namespace spillway::engine
