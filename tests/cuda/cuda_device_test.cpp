// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/driver_api.h"
#include "cuda/host_mapping.h"
#include "cuda/kernel_image.h"
#include "cuda/kernel_stream.h"
#include "cuda/optimizer_kernels.h"
#include "cuda/sim_device.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
namespace standin = spillway::standin;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

template <typename T>
const std::byte* bytes_of(const T* data) {
    return reinterpret_cast<const std::byte*>(data);
}
template <typename T>
std::byte* bytes_of(T* data) {
    return reinterpret_cast<std::byte*>(data);
}

void check_clean() {
    for (const auto& violation : standin::violations())
        FAIL_CHECK(violation);
}

std::vector<std::byte> pattern(std::size_t bytes) {
    std::vector<std::byte> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        data[i] = static_cast<std::byte>((i * 31 + i / 251) & 0xFF);
    return data;
}

}  // namespace

TEST_CASE("a CUDA device computes by its own kernels, between copies both ways") {
    standin::Settings settings;
    settings.max_delay_s = GENERATE(0.0, 300e-6);
    const auto device = make_standin_device(mib, settings);
    CHECK(device->name() == "cuda:0");
    CHECK(device->memory_kind() == MemoryKind::device);
    constexpr std::size_t count = 5000;
    std::vector<float> sent(count);
    std::iota(sent.begin(), sent.end(), 1.0F);
    std::vector<float> received(count);
    {
        const DeviceBuffer sums = device->allocate(count * sizeof(float));
        const DeviceBuffer added = device->allocate(count * sizeof(float));
        CHECK(reinterpret_cast<std::uintptr_t>(sums.data()) % page_bytes == 0);
        const auto stream = device->create_stream("work");
        REQUIRE(stream->kernels() != nullptr);
        for (const auto* buffer : {&sums, &added})
            stream->copy_to_device(buffer->data(), bytes_of(sent.data()), count * sizeof(float));
        add_gradient(*stream->kernels(), sums.as<float>(), added.as<float>(), count);
        stream->copy_to_host(bytes_of(received.data()), sums.data(), count * sizeof(float));
        stream->synchronize();
        standin::host_reads(received.data(), count * sizeof(float));
        for (std::size_t i = 0; i < count; ++i)
            REQUIRE(received[i] == 2 * sent[i]);
        const auto statistics = device->statistics();
        CHECK(statistics.to_device_bytes == 2 * count * sizeof(float));
        CHECK(statistics.to_host_bytes == count * sizeof(float));
        CHECK(statistics.to_device_busy_s > 0);
        CHECK(statistics.to_host_busy_s > 0);
        CHECK(statistics.kernel_busy_s > 0);
        CHECK(statistics.peak_bytes == 10 * page_bytes);
    }
    check_clean();
}

TEST_CASE("nothing of a CUDA device is left behind, round after round") {
    standin::reset({});
    for (int round = 0; round < 20; ++round) {
        const auto device = make_cuda_device(standin_options(mib));
        const DeviceBuffer buffer = device->allocate(100 * page_bytes);
        const HostMapping host(4 * page_bytes);
        const auto locked = device->register_host(host.data(), host.size_bytes());
        const auto first = device->create_stream("first");
        const auto second = device->create_stream("second");
        first->copy_to_device(buffer.data(), host.data(), host.size_bytes());
        second->wait(first->record());
        add_gradient(*second->kernels(), buffer.as<float>(), buffer.as<float>() + 1024, 1024);
        second->launch("nothing", [] {});
        second->record().wait();
        // Nobody looks at what came of these.
        first->wait(second->record());
        second->wait(first->record());
    }
    const auto counts = standin::counts();
    CHECK(counts.allocations == 0);
    CHECK(counts.streams == 0);
    CHECK(counts.events == 0);
    CHECK(counts.modules == 0);
    CHECK(counts.contexts == 0);
    CHECK(counts.registrations == 0);
    check_clean();
}

TEST_CASE("many steps use no more events than one") {
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    const std::vector<std::byte> host(page_bytes);
    const auto up = device->create_stream("up");
    const auto compute = device->create_stream("compute");
    std::size_t events = 0;
    for (int step = 0; step < 100; ++step) {
        up->wait(compute->record());
        up->copy_to_device(buffer.data(), host.data(), page_bytes);
        compute->wait(up->record());
        add_gradient(*compute->kernels(), buffer.as<float>(), buffer.as<float>() + 512, 512);
        compute->synchronize();
        if (step == 10)
            events = standin::counts().events;
    }
    CHECK(standin::counts().events <= events + 4);
    check_clean();
}

TEST_CASE("who waits for a stream or an event sleeps") {
    const auto device = make_standin_device(mib);
    const auto stream = device->create_stream("slow");
    const auto queue_slow = [&] {
        stream->launch("slow", [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
    };
    queue_slow();
    stream->synchronize();
    queue_slow();
    stream->record().wait();
    CHECK(standin::counts().spinning_waits == 0);
    check_clean();
}

TEST_CASE("host memory is page-locked in pieces, and no copy crosses an edge") {
    standin::Settings settings;
    settings.pageable = standin::Settings::Pageable::violation;
    standin::reset(settings);
    auto options = standin_options(mib);
    options.registration_piece_bytes = 2 * page_bytes;
    const auto device = make_cuda_device(options);
    const HostMapping host(7 * page_bytes);
    const HostMapping back(7 * page_bytes);
    const auto sent = pattern(host.size_bytes());
    std::copy(sent.begin(), sent.end(), host.data());
    const auto locked = device->register_host(host.data(), host.size_bytes());
    const auto locked_back = device->register_host(back.data(), back.size_bytes());
    CHECK(locked->page_locked_bytes() == 7 * page_bytes);
    CHECK(standin::counts().registrations == 8);
    CHECK(standin::counts().page_locked_bytes == 14 * page_bytes);

    const DeviceBuffer buffer = device->allocate(host.size_bytes());
    const auto stream = device->create_stream("copies");
    const auto offset = GENERATE(std::size_t{0}, std::size_t{1000});
    const auto bytes = host.size_bytes() - offset;
    stream->copy_to_device(buffer.data(), host.data() + offset, bytes);
    stream->copy_to_host(back.data() + offset, buffer.data(), bytes);
    stream->synchronize();
    CHECK(std::equal(sent.begin() + static_cast<std::ptrdiff_t>(offset), sent.end(),
                     back.data() + offset));

    // Rows of 300 bytes, 700 apart: some lie across an edge, most of them not.
    constexpr std::size_t rows = 40;
    const auto copies_before = standin::counts().copies;
    stream->copy_rows_to_device(buffer.data(), 512, host.data(), 700, 300, rows);
    CHECK(standin::counts().copies - copies_before < rows / 2);
    stream->copy_to_host(back.data(), buffer.data(), rows * 512);
    stream->synchronize();
    for (std::size_t row = 0; row < rows; ++row)
        REQUIRE(std::equal(host.data() + row * 700, host.data() + row * 700 + 300,
                           back.data() + row * 512));
    CHECK(standin::counts().pageable_copies == 0);
    check_clean();
}

TEST_CASE("memory that is not in whole pages is not page-locked") {
    const auto device = make_standin_device(mib);
    const HostMapping host(2 * page_bytes);
    CHECK_THROWS_AS(device->register_host(host.data() + 1, page_bytes), std::invalid_argument);
    CHECK_THROWS_AS(device->register_host(host.data(), page_bytes + 1), std::invalid_argument);
    CHECK(standin::counts().registrations == 0);
    CHECK(make_device("cpu", mib)->register_host(host.data(), page_bytes)->page_locked_bytes() ==
          0);
}

TEST_CASE("wrong copies and kernels are refused before anything is queued") {
    const auto device = make_standin_device(mib);
    const auto stream = device->create_stream("wrong");
    std::vector<std::byte> host(2 * page_bytes);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    DeviceBuffer freed = device->allocate(page_bytes);
    auto* const freed_data = freed.data();
    freed = DeviceBuffer();
    CHECK_THROWS_WITH(stream->copy_to_device(host.data(), host.data() + 1, 8),
                      Catch::Contains("is not device memory"));
    CHECK_THROWS_WITH(stream->copy_to_device(buffer.data(), host.data(), page_bytes + 1),
                      Catch::Contains("crosses the end of its buffer"));
    CHECK_THROWS_WITH(stream->copy_to_host(host.data(), freed_data, 8), Catch::Contains("freed"));
    CHECK_THROWS_WITH(stream->copy_to_host(buffer.data(), buffer.data(), 8),
                      Catch::Contains("host memory is needed"));
    auto& kernels = *stream->kernels();
    auto* const host_floats = reinterpret_cast<float*>(host.data());
    CHECK_THROWS_WITH(add_gradient(kernels, buffer.as<float>(), host_floats, 8),
                      Catch::Contains("spillway_add_gradient") && Catch::Contains("'from'"));
    CHECK_THROWS_WITH(add_gradient(kernels, buffer.as<float>(), buffer.as<float>(), 1025),
                      Catch::Contains("'into'"));
    CHECK_THROWS_AS(add_gradient(kernels, reinterpret_cast<float*>(freed_data), host_floats, 8),
                    std::invalid_argument);
    CHECK_THROWS_AS(add_gradient(kernels, nullptr, buffer.as<float>(), 8), std::invalid_argument);
    CHECK_NOTHROW(stream->synchronize());
    CHECK(standin::counts().copies == 0);
    CHECK(standin::counts().kernels == 0);
    check_clean();
}

TEST_CASE("a device that cannot be had is refused by name, with the reason") {
    standin::Settings settings;
    settings.device_memory_bytes = 64 * mib;
    standin::reset(settings);
    const auto refusal = [](const CudaOptions& options) {
        try {
            const auto device = make_cuda_device(options);
        } catch (const std::invalid_argument& error) {
            return std::string(error.what());
        }
        return std::string("not refused");
    };
    auto options = standin_options(mib);
    options.driver_library = "/nowhere/libcuda.so.1";
    CHECK_THAT(refusal(options), Catch::Contains("'cuda:0'") && Catch::Contains("/nowhere"));
    options = standin_options(mib);
    options.ordinal = 1;
    CHECK_THAT(refusal(options), Catch::Contains("'cuda:1'") && Catch::Contains("1 devices"));
    options = standin_options(65 * mib);
    CHECK_THAT(refusal(options), Catch::Contains("65MiB") && Catch::Contains("64MiB are free"));
    options = standin_options(mib);
    options.registration_piece_bytes = 1000;
    CHECK_THAT(refusal(options), Catch::Contains("1000") && Catch::Contains("multiple of 4096"));
    standin::fail_call("cuModuleLoadDataEx", 1, 218);
    CHECK_THAT(refusal(standin_options(mib)), Catch::Contains("loading the kernels"));
    standin::fail_call("cuModuleGetFunction", 3, driver::not_found);
    CHECK_THAT(refusal(standin_options(mib)),
               Catch::Contains("kernel 'spillway_") && Catch::Contains("named symbol not found"));
    if (kernel_image().empty()) {
        options = standin_options(mib);
        options.kernels = {};
        CHECK_THAT(refusal(options), Catch::Contains("no nvcc"));
    }
    CHECK(refusal(standin_options(mib)) == "not refused");
    settings.capability_major = 7;
    settings.driver_version = 1000;
    standin::reset(settings);
    CHECK_THAT(refusal(standin_options(mib)),
               Catch::Contains("'cuda:0'") && Catch::Contains("compute capability 7.0"));
    if (!kernel_image().empty()) {
        options = standin_options(mib);
        options.kernels = {};
        CHECK_THAT(refusal(options),
                   Catch::Contains("'cuda:0'") && Catch::Contains("driver is of CUDA 1.0"));
    }
    CHECK(standin::counts().contexts == 0);
    CHECK(standin::counts().modules == 0);
}

TEST_CASE("kernels are looked up when the device is made, and no more") {
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    const auto stream = device->create_stream("work");
    standin::fail_call("cuModuleGetFunction", 1, driver::not_found);
    CHECK_NOTHROW(
        add_gradient(*stream->kernels(), buffer.as<float>(), buffer.as<float>() + 512, 8));
    CHECK_NOTHROW(stream->synchronize());
}

TEST_CASE("a CUDA device is told from others by what it is, not by its number") {
    standin::Settings settings;
    settings.devices = 2;
    standin::reset(settings);
    auto options = standin_options(mib);
    CHECK(make_cuda_device(options)->identity() == "Stand-in at 0000:00:00.0");
    options.ordinal = 1;
    CHECK(make_cuda_device(options)->identity() == "Stand-in at 0000:01:00.0");
    CHECK(make_device("cpu", mib)->identity() == "cpu");
}

TEST_CASE("a device without a capacity takes what is free, less a margin") {
    standin::Settings settings;
    settings.device_memory_bytes = cuda_margin_bytes + 3 * mib;
    CHECK(make_standin_device(0, settings)->capacity_bytes() == 3 * mib);
}

TEST_CASE("the kernels that this build has are loaded where none are given") {
    if (kernel_image().empty())
        return;
    standin::reset({});
    auto options = standin_options(mib);
    options.kernels = {};
    const auto device = make_cuda_device(options);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    const auto stream = device->create_stream("own");
    join_tiles(*stream->kernels(), buffer.as<float>(), 0);
    add_gradient(*stream->kernels(), buffer.as<float>(), buffer.as<float>() + 512, 512);
    CHECK_NOTHROW(stream->synchronize());
}

TEST_CASE("two GPUs wait for each other's events, and failures cross with them") {
    standin::Settings settings;
    settings.devices = 2;
    settings.max_delay_s = 50e-6;
    standin::reset(settings);
    auto options = standin_options(mib);
    const auto first_device = make_cuda_device(options);
    options.ordinal = 1;
    const auto second_device = make_cuda_device(options);
    const auto first = first_device->create_stream("first");
    const auto second = second_device->create_stream("second");
    const DeviceBuffer up = first_device->allocate(page_bytes);
    const DeviceBuffer down = second_device->allocate(page_bytes);
    // There and back again through one piece of host memory: the look-alike sees every conflict.
    std::vector<std::byte> host(page_bytes);
    for (int round = 0; round < 20; ++round) {
        first->copy_to_host(host.data(), up.data(), page_bytes);
        second->wait(first->record());
        second->copy_to_device(down.data(), host.data(), page_bytes);
        first->wait(second->record());
    }
    // Both look at the other at once.
    std::thread looks([&] { second->synchronize(); });
    first->synchronize();
    looks.join();
    first->launch("bad", [] { throw std::domain_error("it failed"); });
    second->wait(first->record());
    CHECK_THROWS_WITH(second->synchronize(), "it failed");
    check_clean();
}

TEST_CASE("a simulated device's event is waited for in the stream's order") {
    const auto device = make_standin_device(mib);
    const auto sim = make_device("sim:1MiB", 0);
    const auto there = sim->create_stream("there");
    const auto here = device->create_stream("here");
    std::atomic<int> value = 0;
    there->launch("slow", [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        value = 1;
    });
    here->wait(there->record());
    int seen = 0;
    here->launch("look", [&] { seen = value; });
    there->wait(here->record());
    there->launch("after", [&] { value = 2; });
    there->synchronize();
    CHECK(seen == 1);
    CHECK(value == 2);
    check_clean();
}
