// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Several devices of one kind: copies between them, and what belongs to one is not used by another.
#include <cstring>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/driver.h"
#include "cuda/sim_device.h"
#include "tests/cuda/rank.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
using spillway::testing::numbers;
namespace driver = spillway::cuda::driver;
namespace standin = spillway::standin;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t floats = 3000;
constexpr std::size_t bytes = floats * sizeof(float);

enum class Kind { simulated, gpus };

std::vector<std::unique_ptr<Device>> two_devices(Kind kind, standin::Settings settings = {}) {
    std::vector<std::unique_ptr<Device>> devices;
    settings.devices = 2;
    settings.max_delay_s = 1e-4;
    standin::reset(settings);
    for (int number = 0; number < 2; ++number) {
        if (kind == Kind::simulated) {
            SimOptions options;
            options.capacity_bytes = mib;
            options.max_random_delay_s = 1e-4;
            options.name = "sim";
            devices.push_back(make_sim_device(options));
        } else {
            auto options = standin_options(mib);
            options.ordinal = number;
            devices.push_back(make_cuda_device(options));
        }
    }
    return devices;
}

/// Takes `values` to the first device, from there to the second, and back.
std::vector<float> by_way_of_both(std::vector<std::unique_ptr<Device>>& devices,
                                  const std::vector<float>& values) {
    const auto first = devices[0]->allocate(bytes);
    const auto second = devices[1]->allocate(bytes);
    const auto up = devices[0]->create_stream("up");
    const auto across = devices[1]->create_stream("across");
    std::vector<float> back(floats);
    up->copy_to_device(first.data(), reinterpret_cast<const std::byte*>(values.data()), bytes);
    across->wait(up->record());
    across->copy_from_peer(second.data(), *devices[0], first.data(), bytes);
    across->copy_to_host(reinterpret_cast<std::byte*>(back.data()), second.data(), bytes);
    across->synchronize();
    up->synchronize();
    return back;
}

std::size_t violations_about(const std::string& words) {
    std::size_t count = 0;
    for (const auto& violation : standin::violations())
        count += violation.find(words) != std::string::npos ? 1U : 0U;
    return count;
}

}  // namespace

TEST_CASE("a device takes memory over from another, in the order of its stream") {
    const auto kind = GENERATE(Kind::simulated, Kind::gpus);
    auto devices = two_devices(kind);
    CHECK(devices[0]->reach(*devices[1]) == Device::PeerPath::direct);
    CHECK(devices[1]->reach(*devices[0]) == Device::PeerPath::direct);
    CHECK(devices[1]->reach(*devices[0]) == Device::PeerPath::direct);  // it is already
    const auto values = numbers(floats, 1);
    CHECK(by_way_of_both(devices, values) == values);
    CHECK(standin::violations().empty());
    if (kind == Kind::gpus) {
        CHECK(standin::counts().peer_copies == 1);
        CHECK(standin::counts().peers == 2);
    }
}

TEST_CASE("GPUs that do not reach each other say so, and copy all the same") {
    auto devices = two_devices(Kind::gpus, {.peer_access = standin::Settings::PeerAccess::none});
    CHECK(devices[0]->reach(*devices[1]) == Device::PeerPath::through_host);
    const auto values = numbers(floats, 2);
    CHECK(by_way_of_both(devices, values) == values);
    CHECK(standin::counts().peers == 0);
    CHECK(standin::violations().empty());
}

TEST_CASE("a copy from a peer checks both sides, and what is no GPU is none") {
    auto devices = two_devices(Kind::gpus);
    const auto own = devices[0]->allocate(bytes);
    const auto others = devices[1]->allocate(bytes);
    const auto stream = devices[0]->create_stream("copies");
    CHECK_THROWS_WITH(stream->copy_from_peer(own.data(), *devices[1], own.data(), bytes),
                      Catch::Contains("are not memory of cuda:1"));
    CHECK_THROWS_WITH(stream->copy_from_peer(others.data(), *devices[1], others.data(), bytes),
                      Catch::Contains("are not memory of cuda:0"));
    const auto cpu = make_device("cpu", mib);
    CHECK_THROWS_WITH(stream->copy_from_peer(own.data(), *cpu, others.data(), bytes),
                      Catch::Contains("cpu, which is no GPU"));
    CHECK_THROWS_AS(devices[0]->reach(*cpu), std::invalid_argument);
    CHECK(standin::counts().peer_copies == 0);
}

TEST_CASE("planted: a copy from a peer does not wait for what makes its source") {
    auto devices = two_devices(Kind::gpus);
    const auto from = devices[0]->allocate(bytes);
    const auto to = devices[1]->allocate(bytes);
    const auto values = numbers(floats, 3);
    const auto up = devices[0]->create_stream("up");
    const auto across = devices[1]->create_stream("across");
    up->copy_to_device(from.data(), reinterpret_cast<const std::byte*>(values.data()), bytes);
    across->copy_from_peer(to.data(), *devices[0], from.data(), bytes);
    across->synchronize();
    up->synchronize();
    CHECK(violations_about("a copy from a peer") == 1);
}

TEST_CASE("planted: one device's stream, event or memory is used as another's") {
    auto devices = two_devices(Kind::gpus);
    const auto library = Driver::load(SPILLWAY_CUDA_STANDIN);
    const auto& calls = *library;
    const auto on = [&](int device, const auto& work) {
        driver::ContextHandle context = nullptr;
        REQUIRE(calls->context_retain(&context, device) == driver::success);
        calls->context_push(context);
        work();
        calls->context_pop(&context);
        calls->context_release(device);
    };
    driver::StreamHandle stream = nullptr;
    driver::EventHandle event = nullptr;
    const auto memory = devices[0]->allocate(bytes);
    std::vector<std::byte> host(bytes);
    on(0, [&] { calls->event_create(&event, driver::event_without_timing); });
    on(1, [&] {
        calls->stream_create(&stream, driver::stream_non_blocking);
        CHECK(calls->event_record(event, stream) == driver::invalid_handle);
        calls->copy_to_device(reinterpret_cast<driver::Address>(memory.data()), host.data(), bytes,
                              stream);
    });
    CHECK(violations_about("on device 1 uses memory of device 0") == 1);
    on(0, [&] {
        calls->launch_host(
            stream, [](void*) {}, nullptr);
    });
    CHECK(violations_about("belongs to device 1 is used while device 0 is current") == 1);
    on(1, [&] {
        calls->stream_synchronize(stream);
        calls->stream_destroy(stream);
        calls->event_destroy(event);
    });
}

TEST_CASE("the loss of one GPU's context is not that of another's") {
    auto devices = two_devices(Kind::gpus);
    standin::fail_in_stream("copy", 1, driver::illegal_address, 0);
    const auto values = numbers(floats, 4);
    const auto lost = devices[0]->allocate(bytes);
    const auto kept = devices[1]->allocate(bytes);
    std::vector<std::unique_ptr<Stream>> streams;
    for (const auto& device : devices)
        streams.push_back(device->create_stream("up"));
    const auto* const data = reinterpret_cast<const std::byte*>(values.data());
    streams[0]->copy_to_device(lost.data(), data, bytes);
    streams[1]->copy_to_device(kept.data(), data, bytes);
    CHECK_THROWS_WITH(streams[0]->synchronize(), Catch::Contains("cuda:0"));
    CHECK_NOTHROW(streams[1]->synchronize());
}
