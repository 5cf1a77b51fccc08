// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/sim_device.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/sim_memory.h"

using namespace spillway::cuda;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t page = 4096;

std::unique_ptr<Device> make_sim(std::size_t capacity_bytes, double link_bytes_per_s = 0,
                                 double max_random_delay_s = 0, std::uint64_t seed = 0) {
    SimOptions options;
    options.capacity_bytes = capacity_bytes;
    options.link_bytes_per_s = link_bytes_per_s;
    options.max_random_delay_s = max_random_delay_s;
    options.seed = seed;
    return make_sim_device(options);
}

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

TEST_CASE("bad options of a simulated device are refused by name") {
    CHECK_THROWS_WITH(make_sim(100), Catch::Contains("capacity_bytes is 100"));
    CHECK_THROWS_WITH(make_sim(page, -1), Catch::Contains("link_bytes_per_s is -1"));
    CHECK_THROWS_WITH(make_sim(page, std::nan("")), Catch::Contains("link_bytes_per_s"));
    CHECK_THROWS_WITH(make_sim(page, 0, std::numeric_limits<double>::infinity()),
                      Catch::Contains("max_random_delay_s is inf"));
}

TEST_CASE("copies take no less than their bytes by the rate, large or small, and on any stream") {
    const double rate = 200e6;
    const auto device = make_sim(std::size_t{8} << 20, rate);
    const std::size_t bytes = std::size_t{4} << 20;
    const std::size_t piece =
        GENERATE(std::size_t{4} << 20, std::size_t{64} << 10, std::size_t{512});
    const std::vector<std::byte> host(bytes, std::byte{7});
    const DeviceBuffer buffer = device->allocate(bytes);
    const auto first = device->create_stream("first");
    const auto second = device->create_stream("second");
    const auto begin = Clock::now();
    for (std::size_t at = 0; at < bytes; at += piece)
        (at / piece % 2 == 0 ? first : second)
            ->copy_to_device(buffer.data() + at, host.data() + at, piece);
    first->synchronize();
    second->synchronize();
    const double link_s = static_cast<double>(bytes) / rate;
    CHECK(seconds_since(begin) >= link_s);
    CHECK(device->statistics().to_device_busy_s == Approx(link_s).epsilon(0.01));
    CHECK(device->statistics().to_host_busy_s == 0);
    CHECK(std::memcmp(buffer.data(), host.data(), bytes) == 0);
}

TEST_CASE("copies back take their time too") {
    const auto device = make_sim(std::size_t{1} << 20, 50e6);
    const auto stream = device->create_stream("back");
    const DeviceBuffer buffer = device->allocate(std::size_t{1} << 20);
    std::vector<std::byte> host(buffer.size_bytes());
    const auto begin = Clock::now();
    stream->copy_to_host(host.data(), buffer.data(), host.size());
    const Event event = stream->record();
    CHECK_FALSE(event.done());
    event.wait();
    CHECK(seconds_since(begin) >= static_cast<double>(host.size()) / 50e6);
}

TEST_CASE("a call returns before its copy has executed, and the host can work meanwhile") {
    const auto device = make_sim(page);
    const auto stream = device->create_stream("asynchronous");
    const DeviceBuffer buffer = device->allocate(page);
    std::promise<void> gate;
    std::vector<std::byte> host(page, std::byte{1});
    stream->launch("gate", [opened = gate.get_future().share()] { opened.wait(); });
    stream->copy_to_device(buffer.data(), host.data(), page);
    const Event event = stream->record();
    CHECK_FALSE(event.done());
    host[0] = std::byte{2};
    gate.set_value();
    event.wait();
    CHECK(buffer.data()[0] == std::byte{2});
}

TEST_CASE("a stream held up by another one's event does not hold up the host or a third stream") {
    const auto device = make_sim(page);
    const auto gated = device->create_stream("gated");
    const auto waiting = device->create_stream("waiting");
    const auto free = device->create_stream("free");
    std::promise<void> gate;
    int value = 0;
    gated->launch("gate", [&value, opened = gate.get_future().share()] {
        opened.wait();
        value = 1;
    });
    waiting->wait(gated->record());
    int seen = -1;
    waiting->launch("look", [&] { seen = value; });
    const Event looked = waiting->record();
    free->launch("free", [] {});
    free->synchronize();
    CHECK_FALSE(looked.done());
    gate.set_value();
    looked.wait();
    CHECK(seen == 1);
}

TEST_CASE("1,000 rounds of copy, kernel and copy over two streams are right under random delays") {
    const double rate = GENERATE(0.0, 2e9);
    constexpr std::size_t elements = 256;
    constexpr int slots = 3;
    const auto device = make_sim(std::size_t{64} << 10, rate, 40e-6, 11);
    const auto copies = device->create_stream("copies");
    const auto compute = device->create_stream("compute");
    const auto back = device->create_stream("back");
    const DeviceBuffer memory = device->allocate(slots * elements * sizeof(int));
    std::vector<int> sent(slots * elements);
    std::vector<int> received(slots * elements);
    Event computed[slots];
    Event returned[slots];
    const auto check = [&](int round, std::size_t slot) {
        for (std::size_t i = 0; i < elements; ++i)
            if (received[slot * elements + i] != 3 * (round * 1000 + static_cast<int>(i)))
                FAIL("round " << round << ", element " << i);
    };
    for (int round = 0; round < 1000; ++round) {
        const auto slot = static_cast<std::size_t>(round % slots);
        int* const host = sent.data() + slot * elements;
        int* const on_device = memory.as<int>() + slot * elements;
        auto* const bytes = reinterpret_cast<std::byte*>(on_device);
        returned[slot].wait();
        if (round >= slots)
            check(round - slots, slot);
        for (std::size_t i = 0; i < elements; ++i)
            host[i] = round * 1000 + static_cast<int>(i);
        copies->wait(returned[slot]);
        copies->copy_to_device(bytes, reinterpret_cast<const std::byte*>(host),
                               elements * sizeof(int));
        compute->wait(copies->record());
        compute->launch("triple", [on_device] {
            for (std::size_t i = 0; i < elements; ++i)
                on_device[i] *= 3;
        });
        computed[slot] = compute->record();
        back->wait(computed[slot]);
        back->copy_to_host(reinterpret_cast<std::byte*>(received.data() + slot * elements), bytes,
                           elements * sizeof(int));
        returned[slot] = back->record();
    }
    back->synchronize();
    for (int round = 1000 - slots; round < 1000; ++round)
        check(round, static_cast<std::size_t>(round % slots));
}

TEST_CASE("freed device memory is poisoned, so that a use after free shows") {
    const auto device = make_sim(4 * page);
    const auto stream = device->create_stream("stale");
    DeviceBuffer buffer = device->allocate(page);
    std::byte* const stale = buffer.data();
    std::fill_n(stale, page, std::byte{1});
    buffer = DeviceBuffer();
    std::byte seen{};
    stream->launch("use after free", [&] { seen = stale[page / 2]; });
    stream->synchronize();
    CHECK(seen == SimMemory::poison);
}

TEST_CASE("a copy between the wrong kinds of memory is refused, naming the pointer that is wrong") {
    const auto device = make_sim(8 * page);
    const auto stream = device->create_stream("pairs");
    const DeviceBuffer a = device->allocate(page);
    const DeviceBuffer b = device->allocate(page);
    std::vector<std::byte> host(4 * page);
    CHECK_THROWS_WITH(stream->copy_to_device(host.data(), host.data() + page, page),
                      Catch::Contains("copy_to_device on stream 'pairs' of sim:32KiB") &&
                          Catch::Contains("the destination, 4096 bytes") &&
                          Catch::Contains("is host memory; device memory is needed"));
    CHECK_THROWS_WITH(stream->copy_to_device(a.data(), b.data(), page),
                      Catch::Contains("the source,") &&
                          Catch::Contains("is device memory; host memory is needed"));
    CHECK_THROWS_WITH(stream->copy_to_host(host.data(), host.data() + page, page),
                      Catch::Contains("copy_to_host") && Catch::Contains("the source,") &&
                          Catch::Contains("is host memory"));
    CHECK_THROWS_WITH(stream->copy_to_host(a.data(), b.data(), page),
                      Catch::Contains("the destination,") && Catch::Contains("is device memory"));
    CHECK_THROWS_WITH(stream->copy_to_device(a.data(), host.data(), page + 1),
                      Catch::Contains("crosses the end of its buffer"));
    CHECK_THROWS_WITH(stream->copy_to_device(b.data() + page, host.data(), 1),
                      Catch::Contains("is freed device memory"));
    CHECK_THROWS_WITH(
        stream->copy_rows_to_device(a.data(), page / 2, host.data(), page, page / 4, 3),
        Catch::Contains("copy_rows_to_device") && Catch::Contains("5120 bytes") &&
            Catch::Contains("crosses the end of its buffer"));
    CHECK_NOTHROW(stream->synchronize());
    CHECK(device->statistics().to_device_bytes == 0);
}

TEST_CASE("a kernel that waits for an event behind itself fails instead of hanging") {
    const auto device = make_sim(page);
    const auto stream = device->create_stream("knot");
    std::promise<Event> later;
    stream->launch("knot", [event = later.get_future().share()] { event.get().wait(); });
    later.set_value(stream->record());
    CHECK_THROWS_WITH(stream->synchronize(), Catch::Contains("waits for an event behind itself"));
}

TEST_CASE("memory that is never touched costs nothing") {
    const auto device = make_sim(std::size_t{64} << 30);
    const DeviceBuffer buffer = device->allocate(page);
    buffer.data()[0] = std::byte{1};
    CHECK(device->free_bytes() == (std::size_t{64} << 30) - page);
}
