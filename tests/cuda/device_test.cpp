// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/device.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/sim_device.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t capacity = 64 * page;

/// Every device that the shared suite runs over.
std::unique_ptr<Device> make_suite_device(const std::string& which) {
    if (which == "sim with delays") {
        SimOptions options;
        options.capacity_bytes = capacity;
        options.max_random_delay_s = 200e-6;
        options.seed = 1;
        return make_sim_device(options);
    }
    if (which.starts_with("cuda")) {
        spillway::standin::Settings settings;
        settings.max_delay_s = which == "cuda with delays" ? 200e-6 : 0;
        return make_standin_device(capacity, settings);
    }
    return make_device(which, capacity);
}

auto every_device() {
    return GENERATE("cpu", "sim:256KiB", "sim:256KiB@1GB/s", "sim with delays");
}

/// Those too whose memory no function on the host may touch.
auto every_device_and_cuda() {
    return GENERATE("cpu", "sim:256KiB", "sim:256KiB@1GB/s", "sim with delays", "cuda",
                    "cuda with delays");
}

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
    std::vector<std::byte> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
        data[i] = static_cast<std::byte>((i * 31 + seed * 17 + i / 251) & 0xFF);
    return data;
}

}  // namespace

TEST_CASE("bytes copied to a device, changed there and copied back are right") {
    const auto device = make_suite_device(every_device());
    const auto stream = device->create_stream("copies");
    const auto sent = pattern(10'000, 3);
    std::vector<std::byte> received(sent.size());
    const DeviceBuffer buffer = device->allocate(sent.size());
    REQUIRE(buffer.size_bytes() == sent.size());
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % page == 0);

    stream->copy_to_device(buffer.data(), sent.data(), sent.size());
    stream->launch("invert", [&] {
        for (std::size_t i = 0; i < sent.size(); ++i)
            buffer.data()[i] = ~buffer.data()[i];
    });
    stream->copy_to_host(received.data(), buffer.data(), received.size());
    stream->synchronize();
    CHECK(std::equal(sent.begin(), sent.end(), received.begin(),
                     [](std::byte s, std::byte r) { return r == ~s; }));

    const DeviceStatistics statistics = device->statistics();
    CHECK(statistics.to_device_bytes == sent.size());
    CHECK(statistics.to_host_bytes == sent.size());
    CHECK(statistics.to_device_busy_s > 0);
    CHECK(statistics.to_host_busy_s > 0);
    CHECK(statistics.kernel_busy_s > 0);
}

TEST_CASE("rows are copied as one operation, gaps left alone") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto stream = device->create_stream("rows");
    const auto sent = pattern(7 * 20, 5);
    std::vector<std::byte> received(11 * 20, std::byte{0});
    const DeviceBuffer buffer = device->allocate(received.size());
    stream->copy_to_device(buffer.data(), received.data(), received.size());
    stream->copy_rows_to_device(buffer.data(), 11, sent.data(), 7, 5, 20);
    stream->copy_to_host(received.data(), buffer.data(), received.size());
    stream->synchronize();
    for (std::size_t i = 0; i < received.size(); ++i)
        REQUIRE(received[i] == (i % 11 < 5 ? sent[i / 11 * 7 + i % 11] : std::byte{0}));
    CHECK(device->statistics().to_device_bytes == received.size() + 100);
}

TEST_CASE("a copy of nothing needs no pointers, a null one of something is refused") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto stream = device->create_stream("nothing");
    const DeviceBuffer buffer = device->allocate(page);
    std::byte host{};
    stream->copy_to_device(nullptr, nullptr, 0);
    stream->copy_to_host(nullptr, nullptr, 0);
    stream->copy_rows_to_device(nullptr, 0, nullptr, 0, 8, 0);
    stream->synchronize();
    CHECK_THROWS_AS(stream->copy_to_device(buffer.data(), nullptr, 1), std::invalid_argument);
    CHECK_THROWS_AS(stream->copy_to_host(nullptr, buffer.data(), 1), std::invalid_argument);
    CHECK_THROWS_AS(stream->copy_rows_to_device(buffer.data(), 8, &host, 4, 5, 2),
                    std::invalid_argument);
    CHECK_NOTHROW(stream->synchronize());
}

TEST_CASE("a stream executes in order, whichever thread calls") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto stream = device->create_stream("order");
    std::vector<int> seen;
    for (int i = 0; i < 50; ++i)
        stream->launch("append", [&seen, i] { seen.push_back(i); });
    stream->synchronize();
    std::vector<int> expected(50);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(seen == expected);

    int sum = 0;
    const auto add = [&] {
        for (int i = 0; i < 40; ++i)
            stream->launch("add", [&sum] { ++sum; });
    };
    std::thread first(add);
    std::thread second(add);
    first.join();
    second.join();
    stream->synchronize();
    CHECK(sum == 80);
}

TEST_CASE("an event orders one stream behind another") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto producer = device->create_stream("producer");
    const auto consumer = device->create_stream("consumer");
    int value = 0;
    int wrong = 0;
    for (int round = 1; round <= 50; ++round) {
        producer->launch("produce", [&value, round] { value = round; });
        consumer->wait(producer->record());
        consumer->launch("consume", [&value, &wrong, round] { wrong += value != round; });
        producer->wait(consumer->record());
    }
    consumer->synchronize();
    producer->synchronize();
    CHECK(wrong == 0);
    CHECK(value == 50);
}

TEST_CASE("the host can wait for an event, and a default one has happened") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto stream = device->create_stream("events");
    CHECK(Event().done());
    CHECK_NOTHROW(Event().wait());
    stream->wait(Event());
    std::atomic<bool> ran = false;
    stream->launch("run", [&] { ran = true; });
    const Event event = stream->record();
    event.wait();
    CHECK(ran);
    CHECK(event.done());
    const Event copy = event;
    CHECK(copy.done());
    CHECK_NOTHROW(copy.wait());
}

TEST_CASE("an event outlives its stream, and streams may wait for each other's past") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto waiting = device->create_stream("waiting");
    Event event;
    std::atomic<int> ran = 0;
    {
        const auto stream = device->create_stream("short");
        stream->launch("run", [&] { ++ran; });
        event = stream->record();
        waiting->wait(event);
    }
    CHECK(event.done());
    waiting->launch("run", [&] { ++ran; });
    waiting->synchronize();
    CHECK(ran == 2);
}

TEST_CASE("destroying a stream executes what is queued") {
    const auto device = make_suite_device(every_device_and_cuda());
    std::atomic<int> ran = 0;
    {
        const auto stream = device->create_stream("drained");
        for (int i = 0; i < 20; ++i)
            stream->launch("count", [&] { ++ran; });
    }
    CHECK(ran == 20);
}

TEST_CASE("a kernel's exception is kept, later work dropped, and no event is lost") {
    const auto device = make_suite_device(every_device());
    const auto stream = device->create_stream("failing");
    std::atomic<int> ran = 0;
    std::vector<std::byte> host(16, std::byte{1});
    const DeviceBuffer buffer = device->allocate(host.size());
    stream->launch("good", [&] { ++ran; });
    const Event before = stream->record();
    stream->launch("bad", [] { throw std::domain_error("kernel failed"); });
    stream->launch("dropped", [&] { ran += 100; });
    stream->launch("worse", [] { throw std::runtime_error("a second failure"); });
    stream->copy_to_device(buffer.data(), host.data(), host.size());
    const Event after = stream->record();

    CHECK_NOTHROW(before.wait());
    CHECK_THROWS_WITH(after.wait(), "kernel failed");
    CHECK(after.done());
    CHECK_THROWS_AS(stream->synchronize(), std::domain_error);
    CHECK_THROWS_AS(stream->synchronize(), std::domain_error);
    CHECK(ran == 1);
    CHECK(device->statistics().to_device_bytes == 0);
}

TEST_CASE("a failure reaches the streams that wait for it, and only them") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto failing = device->create_stream("failing");
    const auto behind = device->create_stream("behind");
    const auto apart = device->create_stream("apart");
    std::atomic<int> ran = 0;
    failing->launch("bad", [] { throw std::domain_error("kernel failed"); });
    behind->launch("before", [&] { ++ran; });
    behind->wait(failing->record());
    behind->launch("dropped", [&] { ran += 100; });
    apart->launch("apart", [&] { ran += 10; });
    CHECK_THROWS_WITH(behind->synchronize(), "kernel failed");
    CHECK_NOTHROW(apart->synchronize());
    CHECK(ran == 11);
}

TEST_CASE("a kernel that calls its own stream fails instead of hanging") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto stream = device->create_stream("selfish");
    stream->launch("selfish", [&] { stream->synchronize(); });
    CHECK_THROWS_WITH(stream->synchronize(), Catch::Contains("selfish") &&
                                                 Catch::Contains("called the stream it runs on"));
}

TEST_CASE("kernels release what they hold before a later event happens") {
    const auto device = make_suite_device(every_device_and_cuda());
    const auto stream = device->create_stream("holding");
    auto held = std::make_shared<int>(1);
    stream->launch("bad", [held] { throw std::domain_error("kernel failed"); });
    stream->launch("dropped", [held] { *held = 2; });
    CHECK_THROWS(stream->record().wait());
    CHECK(held.use_count() == 1);
    CHECK(*held == 1);
}

TEST_CASE("capacity holds, and running out says how much was asked and is free") {
    const auto device = make_suite_device(every_device_and_cuda());
    CHECK(device->capacity_bytes() == capacity);
    CHECK(device->free_bytes() == capacity);
    const DeviceBuffer most = device->allocate(capacity - 2 * page);
    DeviceBuffer page_of_one = device->allocate(1);
    CHECK(device->free_bytes() == page);
    try {
        const auto buffer = device->allocate(page + 1);
        FAIL("allocated more than there is");
    } catch (const OutOfDeviceMemory& error) {
        CHECK(error.asked_bytes == page + 1);
        CHECK(error.free_bytes == page);
        CHECK_THAT(error.what(), Catch::Contains(device->name()) && Catch::Contains("4097") &&
                                     Catch::Contains("4096"));
    }
    CHECK_THROWS_AS(device->allocate(SIZE_MAX), OutOfDeviceMemory);
    page_of_one = DeviceBuffer();
    CHECK(device->free_bytes() == 2 * page);
    CHECK(device->allocate(2 * page).data() != nullptr);
    CHECK(device->free_bytes() == 2 * page);
    CHECK(device->statistics().peak_bytes == capacity);
}

TEST_CASE("buffers move, and an allocation of nothing is empty") {
    const auto device = make_suite_device(every_device());
    DeviceBuffer first = device->allocate(page);
    auto* const data = first.as<float>();
    data[0] = 1.5F;
    DeviceBuffer second(std::move(first));
    CHECK(first.data() == nullptr);
    CHECK(first.size_bytes() == 0);
    CHECK(second.as<float>() == data);
    DeviceBuffer third = device->allocate(2 * page);
    third = std::move(second);
    CHECK(third.as<float>()[0] == 1.5F);
    CHECK(third.size_bytes() == page);
    CHECK(device->free_bytes() == capacity - page);
    CHECK(device->allocate(0).data() == nullptr);
    CHECK(device->free_bytes() == capacity - page);
}

TEST_CASE("a buffer left over from a destroyed device is harmless") {
    auto device = make_suite_device(every_device_and_cuda());
    DeviceBuffer left = device->allocate(page);
    DeviceBuffer moved_to = device->allocate(page);
    device.reset();
    moved_to = std::move(left);
    CHECK(moved_to.size_bytes() == page);
}

TEST_CASE("devices are named as on the command line") {
    CHECK(make_device("cpu", page)->name() == "cpu");
    CHECK(make_device("cpu", page)->memory_kind() == MemoryKind::host);
    CHECK(make_device("cpu", page)->link_bytes_per_s() == 0);
    const auto sim = make_device("sim:0.5GiB@500MB/s", 0);
    CHECK(sim->name() == "sim:0.5GiB@500MB/s");
    CHECK(sim->memory_kind() == MemoryKind::device);
    CHECK(sim->link_bytes_per_s() == 5e8);
    CHECK(sim->capacity_bytes() == std::size_t{1} << 29);
    SimOptions options;
    options.capacity_bytes = std::size_t{64} << 20;
    CHECK(make_sim_device(options)->name() == "sim:64MiB");
    options.link_bytes_per_s = 8e9;
    CHECK(make_sim_device(options)->name() == "sim:64MiB@8GB/s");
}
