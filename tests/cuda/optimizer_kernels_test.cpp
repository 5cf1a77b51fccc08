// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/optimizer_kernels.h"

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/float_formats.h"
#include "cpu_optim/split_master.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
namespace cpu_optim = spillway::cpu_optim;
namespace standin = spillway::standin;
using cpu_optim::GradientType;
using cpu_optim::Isa;

namespace {

constexpr std::size_t capacity = std::size_t{64} << 20;

constexpr float special_values[] = {0.0F,
                                    -0.0F,
                                    1.0F,
                                    -1.0F,
                                    1e-45F,
                                    -1e-40F,
                                    1.17549435e-38F,
                                    3.4028234e38F,
                                    -3.4028234e38F,
                                    std::numeric_limits<float>::infinity(),
                                    -std::numeric_limits<float>::infinity(),
                                    std::numeric_limits<float>::quiet_NaN(),
                                    -std::numeric_limits<float>::quiet_NaN(),
                                    1e-20F,
                                    65504.0F,
                                    3.39e38F};

/// Every special value meets every other one somewhere; the rest is random over many magnitudes.
std::vector<float> values(std::size_t count, std::size_t stride, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> mantissa;
    std::uniform_int_distribution<int> exponent(-12, 6);
    std::vector<float> result(count);
    for (std::size_t i = 0; i < count; ++i)
        result[i] = i % 512 < 256 ? special_values[i / stride % std::size(special_values)]
                                  : std::ldexp(mantissa(random), exponent(random));
    return result;
}

std::vector<std::byte> gradient_of(const std::vector<float>& values, GradientType type) {
    const auto size = cpu_optim::gradient_bytes(type);
    std::vector<std::byte> bytes(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(values[i]);
        // Every pattern of 16 bits is a number of either format.
        const auto half = static_cast<std::uint16_t>(bits >> 16 ^ (bits & 0xFFu));
        if (type == GradientType::fp32)
            std::memcpy(&bytes[i * size], &values[i], size);
        else
            std::memcpy(&bytes[i * size], &half, size);
    }
    return bytes;
}

using cpu_optim::HyperParameters;

std::vector<HyperParameters> every_rule() {
    using namespace cpu_optim;
    std::vector<HyperParameters> rules;
    for (const auto decay : {WeightDecay::decoupled, WeightDecay::l2})
        for (const auto amsgrad : {Amsgrad::off, Amsgrad::on})
            rules.push_back(AdamHyperParameters{.decay = decay, .amsgrad = amsgrad});
    rules.push_back(AdamHyperParameters{.weight_decay = 0, .decay = WeightDecay::l2});
    rules.push_back(AdamHyperParameters{.nesterov = Nesterov::on});
    rules.push_back(AdamHyperParameters{.objective = Objective::maximise});
    rules.push_back(SgdHyperParameters{});
    rules.push_back(SgdHyperParameters{.momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01});
    rules.push_back(SgdHyperParameters{.momentum = 0.9, .nesterov = Nesterov::on});
    rules.push_back(AdagradHyperParameters{.weight_decay = 0.1, .initial_accumulator_value = 0.1});
    rules.push_back(LionHyperParameters{.weight_decay = 0.1});
    for (const auto centred : {Centred::off, Centred::on})
        for (const double momentum : {0.0, 0.9})
            rules.push_back(RmspropHyperParameters{
                .weight_decay = 0.01, .momentum = momentum, .centred = centred});
    return rules;
}

enum class Master { whole, halves };

struct Planes {
    std::vector<float> master;
    std::vector<std::uint16_t> weight;
    std::vector<std::int16_t> residue;
    std::vector<std::vector<float>> state;

    Planes(std::size_t count, std::size_t state_planes) : master(values(count, 1, 1)) {
        for (const float w : master) {
            weight.push_back(cpu_optim::split(w).hi);
            residue.push_back(cpu_optim::split(w).lo);
        }
        for (std::size_t plane = 0; plane < state_planes; ++plane)
            state.push_back(values(count, plane == 0 ? 16 : 3 + plane, 10 + unsigned(plane)));
    }
};

cpu_optim::ElementwiseRun run_of(Planes& planes, Master kind, const void* gradient,
                                 GradientType type) {
    cpu_optim::ElementwiseRun run;
    run.elements = planes.master.size();
    if (kind == Master::whole) {
        run.master = planes.master.data();
    } else {
        run.weight = planes.weight.data();
        run.residue = planes.residue.data();
    }
    for (std::size_t plane = 0; plane < planes.state.size(); ++plane)
        run.state[plane] = planes.state[plane].data();
    run.gradient = gradient;
    run.gradient_type = type;
    return run;
}

/// Both ways from the same planes; returns whether all bits agree.
bool updates_alike(Device& device, const HyperParameters& hyper, std::uint64_t step,
                   std::size_t count, Master kind, GradientType type) {
    const auto stream = device.create_stream("update");
    const auto coefficients = cpu_optim::make_coefficients(hyper, step, 0.5);
    Planes planes(count, cpu_optim::state_planes(hyper));
    const auto gradient = gradient_of(values(count, 5, 3), type);

    const OnDevice master(device, *stream, planes.master);
    const OnDevice weight(device, *stream, planes.weight);
    const OnDevice residue(device, *stream, planes.residue);
    const OnDevice device_gradient(device, *stream, gradient);
    const OnDevice counted(device, *stream, std::vector<unsigned long long>{1000});
    std::vector<OnDevice<float>> state;
    for (const auto& plane : planes.state)
        state.emplace_back(device, *stream, plane);
    cpu_optim::ElementwiseRun there = run_of(planes, kind, device_gradient.data(), type);
    there.master = kind == Master::whole ? master.data() : nullptr;
    there.weight = kind == Master::halves ? weight.data() : nullptr;
    there.residue = kind == Master::halves ? residue.data() : nullptr;
    for (std::size_t plane = 0; plane < state.size(); ++plane)
        there.state[plane] = state[plane].data();
    update_run(*stream->kernels(), coefficients, there, counted.data());

    const auto here = cpu_optim::update_run(cpu_optim::best_isa(), coefficients,
                                            run_of(planes, kind, gradient.data(), type));
    bool alike = counted.values().front() == 1000 + here;
    alike = alike && same_bits(master.values(), planes.master);
    alike = alike && same_bits(weight.values(), planes.weight);
    alike = alike && same_bits(residue.values(), planes.residue);
    for (std::size_t plane = 0; plane < state.size(); ++plane)
        alike = alike && same_bits(state[plane].values(), planes.state[plane]);
    return alike && standin::violations().empty();
}

}  // namespace

TEST_CASE("every rule updates on a device with the bits of the processor's kernels", "[gpu]") {
    const auto kind = GENERATE(Master::whole, Master::halves);
    const auto type = GENERATE(GradientType::fp32, GradientType::bf16, GradientType::fp16);
    const auto device = make_gpu_test_device(capacity);
    for (const auto& hyper : every_rule()) {
        INFO(cpu_optim::optimizer_name(hyper)
             << ", rule " << hyper.index() << ", halves " << (kind == Master::halves)
             << ", gradient " << int(type));
        for (const std::uint64_t step : {1u, 7u})
            CHECK(updates_alike(*device, hyper, step, 3000, kind, type));
    }
}

TEST_CASE("runs of every length are updated whole and no further", "[gpu]") {
    const auto device = make_gpu_test_device(capacity);
    for (const std::size_t count : {1u, 2u, 31u, 255u, 256u, 257u, 1023u, 16384u, 40001u})
        CHECK(updates_alike(*device, cpu_optim::AdamHyperParameters{}, 3, count, Master::halves,
                            GradientType::bf16));
}

TEST_CASE("an update is refused where a plane is missing, and one of nothing does nothing") {
    const auto device = make_standin_device(capacity);
    const auto stream = device->create_stream("update");
    auto& kernels = *stream->kernels();
    const auto c = cpu_optim::make_coefficients(cpu_optim::AdamHyperParameters{}, 1, 1.0);
    const DeviceBuffer buffer = device->allocate(1 << 16);
    auto* const counted = buffer.as<unsigned long long>() + 4096;
    cpu_optim::ElementwiseRun run;
    CHECK_NOTHROW(update_run(kernels, c, run, nullptr));
    run.elements = 16;
    CHECK_THROWS_WITH(update_run(kernels, c, run, counted), Catch::Contains("master"));
    run.master = buffer.as<float>();
    CHECK_THROWS_WITH(update_run(kernels, c, run, counted), Catch::Contains("gradient"));
    run.gradient = buffer.data() + 1024;
    CHECK_THROWS_WITH(update_run(kernels, c, run, nullptr), Catch::Contains("counted"));
    run.state[0] = buffer.as<float>() + 512;
    CHECK_THROWS_WITH(update_run(kernels, c, run, counted), Catch::Contains("state[1]"));
    run.state[1] = buffer.as<float>() + 1024;
    run.residue = buffer.as<std::int16_t>();
    CHECK_THROWS_WITH(update_run(kernels, c, run, counted), Catch::Contains("master"));
    run.residue = nullptr;
    CHECK_NOTHROW(update_run(kernels, c, run, counted));
    CHECK_NOTHROW(stream->synchronize());
    CHECK(standin::counts().kernels == 1);
}

TEST_CASE("averages move on a device with the bits of the processor's kernels", "[gpu]") {
    const auto device = make_gpu_test_device(capacity);
    const auto stream = device->create_stream("average");
    constexpr std::size_t count = 2500;
    for (const std::uint64_t averaged : {0u, 1u, 9u})
        for (const auto kind : {Master::whole, Master::halves}) {
            const auto c =
                cpu_optim::make_average_coefficients(cpu_optim::SwaParameters{}, averaged);
            Planes planes(count, 0);
            auto average = values(count, 16, 4);
            const OnDevice master(*device, *stream, planes.master);
            const OnDevice weight(*device, *stream, planes.weight);
            const OnDevice residue(*device, *stream, planes.residue);
            const OnDevice there(*device, *stream, average);
            const bool whole = kind == Master::whole;
            update_average(*stream->kernels(), c,
                           {.elements = count,
                            .master = whole ? master.data() : nullptr,
                            .weight = whole ? nullptr : weight.data(),
                            .residue = whole ? nullptr : residue.data(),
                            .average = there.data()});
            cpu_optim::update_average(cpu_optim::best_isa(), c,
                                      {.elements = count,
                                       .master = whole ? planes.master.data() : nullptr,
                                       .weight = whole ? nullptr : planes.weight.data(),
                                       .residue = whole ? nullptr : planes.residue.data(),
                                       .average = average.data()});
            CHECK(same_bits(there.values(), average));
        }
    CHECK(standin::violations().empty());
}

TEST_CASE("gradients are scanned tile by tile with the bits of the processor's scan", "[gpu]") {
    const auto type = GENERATE(GradientType::fp32, GradientType::bf16, GradientType::fp16);
    const bool finite = GENERATE(false, true);
    const auto device = make_gpu_test_device(capacity);
    const auto stream = device->create_stream("scan");
    for (const std::size_t tile : {std::size_t{16}, std::size_t{1024}, std::size_t{16384}})
        for (const std::size_t count : {std::size_t{1}, std::size_t{15}, std::size_t{1000},
                                        std::size_t{16384}, std::size_t{50001}}) {
            auto numbers = values(count, 3, 8);
            if (finite)
                for (float& number : numbers)
                    number = std::isfinite(number) && std::abs(number) < 1e4F ? number : 0.125F;
            auto gradient = gradient_of(numbers, type);
            const auto tiles = (count + tile - 1) / tile;
            const OnDevice there(*device, *stream, gradient);
            const OnDevice sums(*device, *stream, std::vector<double>(tiles, -1));
            const OnDevice nonfinite(*device, *stream, std::vector<unsigned long long>(tiles, 77));
            scan_gradient(*stream->kernels(), there.data(), type, count, tile, sums.data(),
                          nonfinite.data());
            std::vector<double> wanted_sums;
            std::vector<unsigned long long> wanted_nonfinite;
            for (std::size_t first = 0; first < count; first += tile) {
                const auto scan = cpu_optim::scan_gradient(
                    cpu_optim::best_isa(),
                    gradient.data() + first * cpu_optim::gradient_bytes(type), type,
                    std::min(tile, count - first));
                wanted_sums.push_back(scan.sum_of_squares);
                wanted_nonfinite.push_back(scan.nonfinite);
            }
            INFO("tile " << tile << ", count " << count);
            CHECK(same_bits(sums.values(), wanted_sums));
            CHECK(nonfinite.values() == wanted_nonfinite);
        }
    CHECK(standin::violations().empty());
    CHECK_THROWS_WITH(scan_gradient(*stream->kernels(), nullptr, type, 5, 24, nullptr, nullptr),
                      Catch::Contains("multiple of 16"));
}

TEST_CASE("gradients add up, widen, and masters split and join as on the processor", "[gpu]") {
    const auto device = make_gpu_test_device(capacity);
    const auto stream = device->create_stream("casts");
    auto& kernels = *stream->kernels();
    for (const std::size_t count : {std::size_t{1}, std::size_t{300}, std::size_t{5003}}) {
        auto into = values(count, 1, 1);
        const auto from = values(count, 16, 2);
        const OnDevice there_into(*device, *stream, into);
        const OnDevice there_from(*device, *stream, from);
        add_gradient(kernels, there_into.data(), there_from.data(), count);
        cpu_optim::add_gradient(cpu_optim::best_isa(), into, from);
        CHECK(same_bits(there_into.values(), into));

        Planes planes(count, 0);
        const OnDevice weight(*device, *stream, std::vector<std::uint16_t>(count));
        const OnDevice residue(*device, *stream, std::vector<std::int16_t>(count));
        const OnDevice master(*device, *stream, planes.master);
        const OnDevice counted(*device, *stream, std::vector<unsigned long long>{5});
        const OnDevice joined(*device, *stream, std::vector<float>(count));
        split_master(kernels, master.data(), weight.data(), residue.data(), count, counted.data());
        join_master(kernels, weight.data(), residue.data(), joined.data(), count);
        const auto without = cpu_optim::split_master(cpu_optim::best_isa(), planes.master,
                                                     planes.weight, planes.residue);
        CHECK(same_bits(weight.values(), planes.weight));
        CHECK(same_bits(residue.values(), planes.residue));
        CHECK(counted.values().front() == 5 + without);
        CHECK(same_bits(joined.values(), planes.master));

        widen_gradient(kernels, weight.data(), GradientType::bf16, joined.data(), count);
        std::vector<float> widened;
        for (const auto half : planes.weight)
            widened.push_back(cpu_optim::from_bf16(half));
        CHECK(same_bits(joined.values(), widened));
        CHECK_THROWS_AS(
            widen_gradient(kernels, weight.data(), GradientType::fp32, joined.data(), count),
            std::invalid_argument);
    }
    CHECK(standin::violations().empty());
}

TEST_CASE("tiles of halves become whole where they lie", "[gpu][quick]") {
    constexpr std::size_t tile = 16384;
    constexpr std::size_t tiles = 3;
    const auto device = make_gpu_test_device(capacity);
    const auto stream = device->create_stream("join");
    const auto masters = values(tiles * tile, 1, 1);
    std::vector<std::uint16_t> planes(2 * tiles * tile);
    for (std::size_t i = 0; i < masters.size(); ++i) {
        const auto halves = cpu_optim::split(masters[i]);
        const std::size_t at = i / tile * 2 * tile + i % tile;
        planes[at] = halves.hi;
        planes[at + tile] = static_cast<std::uint16_t>(halves.lo);
    }
    const OnDevice there(*device, *stream, planes);
    join_tiles(*stream->kernels(), reinterpret_cast<float*>(there.data()), tiles);
    std::vector<float> joined(masters.size());
    const auto bits = there.values();
    std::memcpy(joined.data(), bits.data(), joined.size() * sizeof(float));
    CHECK(same_bits(joined, masters));
    CHECK(standin::violations().empty());
}
