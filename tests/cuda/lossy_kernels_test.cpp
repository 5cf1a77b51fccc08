// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "cpu_optim/lossy_state.h"
#include "cpu_optim/split_master.h"
#include "cuda/kernels/lossy_parameters.h"
#include "cuda/optimizer_kernels.h"
#include "tests/cpu_optim/elementwise_cases.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
namespace cpu_optim = spillway::cpu_optim;
namespace standin = spillway::standin;
using cpu_optim::block_elements;
using cpu_optim::GradientType;
using cpu_optim::most_lossy_planes;
using cpu_optim::StateFormat;
using cpu_optim::testing::sample_any;
using cpu_optim::testing::sample_bits;
using cpu_optim::testing::sample_magnitude;

namespace {

constexpr std::size_t capacity = std::size_t{64} << 20;
constexpr std::size_t without_gradient = 1;  ///< the block whose gradients are all zeros

/// What a run is like.
struct Shape {
    StateFormat format = StateFormat::int8;
    std::size_t elements = 2 * block_elements + 131;
    std::uint64_t first_element = 0;
    GradientType gradient = GradientType::fp32;
    enum class Master { whole, halves } master = Master::halves;
    enum class Values { ordinary, any } values = Values::ordinary;
};

/// One value a step and element: few that are not finite, since one makes its block NaN for good.
float gradient_value(const Shape& shape, std::uint64_t step, std::size_t i) {
    if (i / block_elements == without_gradient || sample_bits(step, i) % 5 == 0)
        return i % 2 == 0 ? 0.0F : -0.0F;
    const bool is_any = shape.values == Shape::Values::any && sample_bits(90 + step, i) % 512 == 0;
    return is_any ? sample_any(100 + step, i) : sample_magnitude(100 + step, i, 1e-8, 1e3);
}

std::vector<std::byte> gradient_of(const Shape& shape, std::uint64_t step) {
    std::vector<std::byte> bytes;
    const auto append = [&](auto value) {
        const auto* const data = reinterpret_cast<const std::byte*>(&value);
        bytes.insert(bytes.end(), data, data + sizeof value);
    };
    for (std::size_t i = 0; i < shape.elements; ++i) {
        const float value = gradient_value(shape, step, i);
        if (shape.gradient == GradientType::fp32)
            append(value);
        else if (shape.gradient == GradientType::bf16)
            append(cpu_optim::to_bf16(value));
        else
            append(cpu_optim::to_fp16(value));
    }
    return bytes;
}

/// The planes of a run, on the host.
struct Planes {
    explicit Planes(const Shape& shape) {
        const std::size_t blocks = (shape.elements + block_elements - 1) / block_elements;
        for (std::size_t i = 0; i < shape.elements; ++i) {
            master.push_back(shape.values == Shape::Values::any
                                 ? sample_any(1, i)
                                 : sample_magnitude(1, i, 1e-6, 1.0));
            weight.push_back(cpu_optim::split(master.back()).hi);
            residue.push_back(cpu_optim::split(master.back()).lo);
        }
        for (std::size_t plane = 0; plane < most_lossy_planes; ++plane) {
            halves[plane].resize(shape.elements);
            codes[plane].resize(blocks * block_elements);
            scales[plane].resize(blocks);
        }
    }

    std::vector<float> master;
    std::vector<std::uint16_t> weight;
    std::vector<std::int16_t> residue;
    std::array<std::vector<std::uint16_t>, most_lossy_planes> halves;
    std::array<std::vector<std::uint8_t>, most_lossy_planes> codes, scales;
};

/// The same planes in a device's memory.
class DevicePlanes {
  public:
    DevicePlanes(Device& device, Stream& stream, const Planes& planes)
        : master(device, stream, planes.master),
          weight(device, stream, planes.weight),
          residue(device, stream, planes.residue) {
        for (std::size_t plane = 0; plane < most_lossy_planes; ++plane) {
            halves.emplace_back(device, stream, planes.halves[plane]);
            codes.emplace_back(device, stream, planes.codes[plane]);
            scales.emplace_back(device, stream, planes.scales[plane]);
        }
    }
    /// "" if all bits are those of `planes`, else the first plane that differs.
    [[nodiscard]] std::string difference(const Planes& planes) const {
        if (!same_bits(master.values(), planes.master))
            return "master";
        if (!same_bits(weight.values(), planes.weight))
            return "weight";
        if (!same_bits(residue.values(), planes.residue))
            return "residue";
        for (std::size_t plane = 0; plane < most_lossy_planes; ++plane) {
            if (!same_bits(halves[plane].values(), planes.halves[plane]))
                return "halves";
            if (!same_bits(codes[plane].values(), planes.codes[plane]))
                return "codes";
            if (!same_bits(scales[plane].values(), planes.scales[plane]))
                return "scales";
        }
        return "";
    }

    OnDevice<float> master;
    OnDevice<std::uint16_t> weight;
    OnDevice<std::int16_t> residue;
    std::vector<OnDevice<std::uint16_t>> halves;
    std::vector<OnDevice<std::uint8_t>> codes, scales;
};

/// use(run) of `planes` in the shape's format; `data` is how one of them is reached.
template <typename AnyPlanes, typename Use>
auto with_run(const Shape& shape, AnyPlanes& planes, const void* gradient, const Use& use) {
    const auto with_common = [&](auto run) {
        run.elements = shape.elements;
        run.first_element = shape.first_element;
        if (shape.master == Shape::Master::whole) {
            run.master = planes.master.data();
        } else {
            run.weight = planes.weight.data();
            run.residue = planes.residue.data();
        }
        run.gradient = gradient;
        run.gradient_type = shape.gradient;
        return run;
    };
    if (shape.format == StateFormat::bf16) {
        auto run = with_common(cpu_optim::Bf16Run{});
        for (std::size_t plane = 0; plane < most_lossy_planes; ++plane)
            run.state[plane] = planes.halves[plane].data();
        return use(run);
    }
    auto run = with_common(cpu_optim::Int8Run{});
    for (std::size_t plane = 0; plane < most_lossy_planes; ++plane) {
        run.codes[plane] = planes.codes[plane].data();
        run.scales[plane] = planes.scales[plane].data();
    }
    return use(run);
}

bool accepts(const cpu_optim::HyperParameters& hyper, StateFormat format) {
    try {
        cpu_optim::check(hyper, format);
        return true;
    } catch (const std::invalid_argument&) {
        return false;
    }
}

/// Three steps there and on the processor from the same planes: "" if all bits agree.
std::string difference_after_steps(Device& device, const Shape& shape,
                                   const cpu_optim::HyperParameters& hyper) {
    const auto stream = device.create_stream("update");
    Planes here(shape);
    const DevicePlanes there(device, *stream, here);
    const OnDevice counted(device, *stream, std::vector<unsigned long long>{1000});
    std::size_t wanted = 1000;
    for (std::uint64_t step = 1; step <= 3; ++step) {
        const auto c = cpu_optim::make_coefficients(hyper, step, 0.5);
        const cpu_optim::RoundingStream rounding{11, 3 + shape.elements, step};
        const auto gradient = gradient_of(shape, step);
        const OnDevice device_gradient(device, *stream, gradient);
        with_run(shape, there, device_gradient.data(), [&](const auto& run) {
            update_run(*stream->kernels(), c, rounding, run, counted.data());
        });
        wanted += with_run(shape, here, gradient.data(), [&](const auto& run) {
            return cpu_optim::update_run(cpu_optim::best_isa(), c, rounding, run);
        });
        stream->synchronize();
    }
    if (counted.values().front() != wanted)
        return "counted masters";
    if (!standin::violations().empty())
        return standin::violations().front();
    return there.difference(here);
}

}  // namespace

TEST_CASE("lossy state: every rule updates on a device with the bits of the processor's kernels",
          "[gpu]") {
    const auto device = make_gpu_test_device(capacity);
    Shape shape;
    shape.format = GENERATE(StateFormat::bf16, StateFormat::int8);
    shape.values = GENERATE(Shape::Values::ordinary, Shape::Values::any);
    shape.gradient = GENERATE(GradientType::fp32, GradientType::bf16, GradientType::fp16);
    shape.master = GENERATE(Shape::Master::whole, Shape::Master::halves);
    for (const auto& [name, hyper] : cpu_optim::testing::every_rule()) {
        if (!accepts(hyper, shape.format))
            continue;
        INFO(name << " in " << cpu_optim::state_format_name(shape.format) << ", gradient "
                  << int(shape.gradient));
        CHECK(difference_after_steps(*device, shape, hyper) == "");
    }
}

TEST_CASE("lossy state: runs of every length are updated on a device whole and no further",
          "[gpu]") {
    const auto device = make_gpu_test_device(capacity);
    Shape shape;
    shape.values = Shape::Values::any;
    for (const auto format : {StateFormat::bf16, StateFormat::int8})
        for (const std::size_t elements :
             {1u, 31u, 32u, 63u, 64u, 65u, 255u, 256u, 257u, 511u, 2048u, 2049u, 16384u}) {
            shape.format = format;
            shape.elements = elements;
            INFO(cpu_optim::state_format_name(format) << ", " << elements << " elements");
            CHECK(difference_after_steps(*device, shape, cpu_optim::AdamHyperParameters{}) == "");
        }
}

TEST_CASE("lossy state: random numbers are those of the element's place in its tensor", "[gpu]") {
    const auto device = make_gpu_test_device(capacity);
    constexpr std::uint64_t upper = std::uint64_t{1} << 32;
    Shape shape;
    for (const auto format : {StateFormat::bf16, StateFormat::int8})
        for (const std::uint64_t first :
             {std::uint64_t{256}, upper - 512, upper - 256, 3 * upper, 7 * upper + 4096}) {
            shape.format = format;
            // In bf16 a run may begin anywhere.
            shape.first_element = first - (format == StateFormat::bf16 ? 7 : 0);
            INFO(cpu_optim::state_format_name(format) << " from element " << shape.first_element);
            CHECK(difference_after_steps(*device, shape, cpu_optim::AdamHyperParameters{}) == "");
        }
}

TEST_CASE("lossy state: few threads come to every element", "[gpu]") {
    const auto device = make_gpu_test_device(capacity);
    const auto stream = device->create_stream("update");
    using Coefficients = cpu_optim::AdamCoefficients;
    const auto c = cpu_optim::make_coefficients(cpu_optim::AdamHyperParameters{}, 1, 1.0);
    const cpu_optim::RoundingStream rounding{1, 2, 3};
    for (const auto format : {StateFormat::bf16, StateFormat::int8}) {
        Shape shape;
        shape.format = format;
        shape.elements = 9 * block_elements + 5;
        Planes here(shape);
        const DevicePlanes there(*device, *stream, here);
        const OnDevice counted(*device, *stream, std::vector<unsigned long long>{0});
        const auto gradient = gradient_of(shape, 1);
        const OnDevice device_gradient(*device, *stream, gradient);
        const UpdatedPlanes planes{.elements = shape.elements,
                                   .master = nullptr,
                                   .weight = there.weight.data(),
                                   .residue = there.residue.data(),
                                   .gradient = device_gradient.data(),
                                   .gradient_type = GradientType::fp32,
                                   .counted = counted.data()};
        const RoundingSource source{cpu_optim::rounding_key(rounding, 0), 0};
        const auto& rule = std::get<Coefficients>(c.rule);
        const auto words = [&](std::size_t plane) {
            return reinterpret_cast<std::uint32_t*>(there.codes[plane].data());
        };
        if (format == StateFormat::bf16)
            launch(*stream->kernels(), {.blocks = 2, .threads = 32},
                   Bf16Update<Coefficients>{
                       rule, planes, source, {there.halves[0].data(), there.halves[1].data()}});
        else
            launch(*stream->kernels(), {.blocks = 2, .threads = 64},
                   Int8Update<Coefficients>{rule,
                                            planes,
                                            source,
                                            {words(0), words(1)},
                                            {there.scales[0].data(), there.scales[1].data()}});
        stream->synchronize();
        static_cast<void>(with_run(shape, here, gradient.data(), [&](const auto& run) {
            return cpu_optim::update_run(cpu_optim::best_isa(), c, rounding, run);
        }));
        CHECK(there.difference(here) == "");
    }
}

TEST_CASE("lossy state: an update on a device that cannot be is refused by name") {
    const auto device = make_standin_device(capacity);
    const auto stream = device->create_stream("update");
    auto& kernels = *stream->kernels();
    const auto c = cpu_optim::make_coefficients(cpu_optim::AdamHyperParameters{}, 1, 1.0);
    const auto amsgrad = cpu_optim::make_coefficients(
        cpu_optim::AdamHyperParameters{.amsgrad = cpu_optim::Amsgrad::on}, 1, 1.0);
    const auto centred = cpu_optim::make_coefficients(
        cpu_optim::RmspropHyperParameters{.centred = cpu_optim::Centred::on}, 1, 1.0);
    const DeviceBuffer buffer = device->allocate(1 << 16);
    auto* const counted = buffer.as<unsigned long long>();
    const auto bytes = [&](std::size_t at) { return buffer.as<std::uint8_t>() + at; };

    cpu_optim::Bf16Run halves;
    cpu_optim::Int8Run codes;
    CHECK_NOTHROW(update_run(kernels, c, {}, halves, nullptr));
    CHECK_NOTHROW(update_run(kernels, c, {}, codes, nullptr));
    for (auto* const run :
         {static_cast<cpu_optim::LossyRun*>(&halves), static_cast<cpu_optim::LossyRun*>(&codes)}) {
        run->elements = 256;
        run->master = buffer.as<float>() + 1024;
        run->gradient = buffer.data() + 8192;
    }
    CHECK_THROWS_WITH(update_run(kernels, amsgrad, {}, halves, counted), Catch::Contains("bf16"));
    CHECK_THROWS_WITH(update_run(kernels, centred, {}, codes, counted), Catch::Contains("int8"));
    CHECK_THROWS_WITH(update_run(kernels, c, {}, halves, nullptr), Catch::Contains("counted"));
    CHECK_THROWS_WITH(update_run(kernels, c, {}, halves, counted), Catch::Contains("state[0]"));
    CHECK_THROWS_WITH(update_run(kernels, c, {}, codes, counted), Catch::Contains("codes[0]"));
    codes.codes = {bytes(16384), bytes(20482)};
    codes.scales = {bytes(24576), nullptr};
    CHECK_THROWS_WITH(update_run(kernels, c, {}, codes, counted), Catch::Contains("scales[1]"));
    codes.scales[1] = bytes(28672);
    CHECK_THROWS_WITH(update_run(kernels, c, {}, codes, counted),
                      Catch::Contains("codes[1]") && Catch::Contains("multiple of 4"));
    codes.codes[1] = bytes(20480);
    codes.first_element = 300;
    CHECK_THROWS_WITH(update_run(kernels, c, {}, codes, counted), Catch::Contains("300"));
    CHECK(standin::counts().kernels == 0);
}
