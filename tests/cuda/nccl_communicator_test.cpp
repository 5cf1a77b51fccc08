// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Ranks over NCCL, on look-alikes of it and of the driver.
#include "cuda/nccl_communicator.h"

#include <cmath>
#include <cstddef>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/nccl_library.h"
#include "cuda/optimizer_kernels.h"
#include "cuda/sim_device.h"
#include "tests/cuda/rank.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
using namespace spillway::testing;
namespace standin = spillway::standin;

namespace {

constexpr std::size_t capacity = std::size_t{1} << 20;

void in_threads(unsigned count, const std::function<void(unsigned)>& work) {
    std::vector<std::future<void>> threads;
    for (unsigned r = 0; r < count; ++r)
        threads.push_back(std::async(std::launch::async, work, r));
    for (auto& thread : threads)
        thread.get();
}

void reset_devices(unsigned count) {
    standin::Settings settings;
    settings.devices = static_cast<int>(count);
    settings.max_delay_s = 200e-6;
    standin::reset(settings);
}

std::unique_ptr<Device> device_of(unsigned rank) {
    auto options = standin_options(capacity);
    options.ordinal = static_cast<int>(rank);
    return make_cuda_device(options);
}

std::vector<Rank> make_ranks(unsigned count, double patience_s = 60) {
    reset_devices(count);
    const auto id = make_nccl_id(SPILLWAY_CUDA_STANDIN);
    std::vector<Rank> ranks(count);
    for (unsigned r = 0; r < count; ++r) {
        ranks[r].device = device_of(r);
        ranks[r].stream = ranks[r].device->create_stream("rank");
    }
    // Patience counts from here: a rank that is late to its own making would be missed.
    in_threads(count, [&](unsigned r) {
        ranks[r].communicator = make_nccl_communicator(
            {id, r, count, patience_s, SPILLWAY_CUDA_STANDIN}, *ranks[r].device);
    });
    return ranks;
}

/// Whether `found` is what adding in some order gives.
bool is_sum(const std::vector<float>& found, const std::vector<std::vector<float>>& of) {
    for (std::size_t i = 0; i < found.size(); ++i) {
        double sum = 0;
        double magnitude = 0;
        for (const auto& values : of) {
            sum += static_cast<double>(values[i]);
            magnitude += std::abs(static_cast<double>(values[i]));
        }
        const double bound = magnitude * static_cast<double>(of.size()) *
                             static_cast<double>(std::numeric_limits<float>::epsilon());
        if (std::abs(static_cast<double>(found[i]) - sum) > bound)
            return false;
    }
    return true;
}

std::string thrown_by(const std::function<void()>& work) {
    try {
        work();
    } catch (const CommunicationFailed& error) {
        return error.what();
    }
    return "nothing was thrown";
}

}  // namespace

TEST_CASE("GPUs gather, reduce and broadcast over NCCL, all of them to the same bits") {
    const unsigned count = GENERATE(1u, 3u);
    constexpr std::size_t share = 257;
    auto ranks = make_ranks(count);
    std::vector<std::vector<float>> inputs, doubled(count), sums(count), sent_on(count);
    for (unsigned r = 0; r < count; ++r)
        inputs.push_back(numbers(count * share, 5 + r));
    in_threads(count, [&](unsigned r) {
        auto& [device, stream, communicator] = ranks[r];
        const auto all = sent(ranks[r], inputs[r]);
        auto* const own = all.as<float>() + r * share;
        // A share at its own place, doubled by a kernel on its way.
        communicator->reduce_scatter(*stream, all.as<float>(), own, share);
        add_gradient(*stream->kernels(), own, own, share);
        communicator->all_gather(*stream, reinterpret_cast<std::byte*>(own), all.data(),
                                 share * sizeof(float));
        doubled[r] = received(ranks[r], all.as<float>(), count * share);
        const auto data = sent(ranks[r], inputs[r]);
        communicator->all_reduce(*stream, data.as<float>(), count * share - 1);
        sums[r] = received(ranks[r], data.as<float>(), count * share - 1);
        communicator->broadcast(*stream, data.data(), 4 * share, count - 1);
        sent_on[r] = received(ranks[r], data.as<float>(), share - 1);
    });
    auto halves = doubled[0];
    for (float& value : halves)
        value *= 0.5F;
    CHECK(is_sum(halves, inputs));
    CHECK(is_sum(sums[0], inputs));
    for (unsigned r = 0; r < count; ++r) {
        CHECK(ranks[r].communicator->rank() == r);
        CHECK(ranks[r].communicator->ranks() == count);
        CHECK(doubled[r] == doubled[0]);
        CHECK(sums[r] == sums[0]);
        CHECK(sent_on[r] == std::vector<float>(sums[0].begin(), sums[0].begin() + share - 1));
    }
    ranks.clear();
    CHECK(standin::violations().empty());
}

TEST_CASE("what a collective needs is waited for by its stream, and what needs it comes behind") {
    auto ranks = make_ranks(2);
    constexpr std::size_t count = 100;
    const bool waits = GENERATE(false, true);
    in_threads(2, [&](unsigned r) {
        auto& [device, stream, communicator] = ranks[r];
        const std::vector<float> values(count, 1.0F);
        const auto buffer = device->allocate(count * sizeof(float));
        const auto up = device->create_stream("up");
        up->copy_to_device(buffer.data(), reinterpret_cast<const std::byte*>(values.data()),
                           count * sizeof(float));
        if (waits)
            stream->wait(up->record());
        communicator->all_reduce(*stream, buffer.as<float>(), count);
        stream->synchronize();
        up->synchronize();
    });
    ranks.clear();
    const auto violations = standin::violations();
    // Each rank reads what a copy may still write, and writes there itself.
    REQUIRE(violations.size() == (waits ? 0 : 4));
    if (!waits)
        CHECK_THAT(violations[0], Catch::Contains("ncclAllReduce on stream"));
}

TEST_CASE("a rank that does not come is a named error in bounded time, and the end of the group") {
    auto ranks = make_ranks(2, 1);
    const auto buffer = sent(ranks[0], {1, 2, 3, 4});
    auto& [device, stream, communicator] = ranks[0];
    communicator->all_reduce(*stream, buffer.as<float>(), 4);
    const auto names_it = Catch::Contains(
        "rank 0 of 2: ncclAllReduce (call 1): not every rank "
        "came within 1 s");
    CHECK_THAT(thrown_by([&] { stream->synchronize(); }), names_it);
    const auto other = device->create_stream("other");
    communicator->broadcast(*other, buffer.data(), 4, 0);
    CHECK_THAT(thrown_by([&] { other->record().wait(); }), names_it);
    ranks.clear();
    CHECK(standin::violations().empty());
}

TEST_CASE("a rank whose stream has failed leaves the group before others meet its next call") {
    auto ranks = make_ranks(2, 1);
    auto& [device, stream, communicator] = ranks[0];
    const auto buffer = sent(ranks[0], {1, 2, 3, 4});
    stream->launch("fails", [] { throw std::runtime_error("planted"); });
    CHECK_THROWS_WITH(stream->synchronize(), Catch::Contains("planted"));
    communicator->all_reduce(*stream, buffer.as<float>(), 4);
    const auto other = device->create_stream("other");
    communicator->all_reduce(*other, buffer.as<float>(), 4);
    CHECK_THAT(
        thrown_by([&] { other->synchronize(); }),
        Catch::Contains("rank 0 of 2: ncclAllReduce (call 1): its stream had failed before"));
}

TEST_CASE("ranks that do different things end by patience") {
    auto ranks = make_ranks(2, 1);
    std::vector<std::string> said(2);
    in_threads(2, [&](unsigned r) {
        const auto buffer = sent(ranks[r], {1, 2, 3, 4});
        ranks[r].communicator->all_reduce(*ranks[r].stream, buffer.as<float>(), 3 + r);
        said[r] = thrown_by([&] { ranks[r].stream->synchronize(); });
    });
    for (const auto& one : said)
        CHECK_THAT(one, Catch::Contains("ncclAllReduce (call 1): not every rank came"));
    REQUIRE(standin::violations().size() == 1);
    CHECK_THAT(standin::violations()[0], Catch::Contains("different things"));
}

TEST_CASE("what NCCL reports of a call, or of an operation in flight, is thrown by who waits") {
    const bool in_flight = GENERATE(false, true);
    auto ranks = make_ranks(2, 1);
    if (in_flight)
        standin::fail_in_stream("ncclAllReduce", 1, nccl::remote_error);
    else
        standin::fail_call("ncclAllReduce", 1, nccl::remote_error);
    std::vector<std::string> said(2);
    in_threads(2, [&](unsigned r) {
        const auto buffer = sent(ranks[r], {1, 2, 3, 4});
        ranks[r].communicator->all_reduce(*ranks[r].stream, buffer.as<float>(), 4);
        said[r] = thrown_by([&] { ranks[r].stream->synchronize(); });
    });
    const std::size_t failed = said[0].find("remote process") != std::string::npos ? 0 : 1;
    CHECK_THAT(said[failed],
               Catch::Contains("rank " + std::to_string(failed) + " of 2: ncclAllReduce") &&
                   Catch::Contains("failed with 'remote process exited or there was a network "
                                   "error' (6): said last") &&
                   Catch::Contains("start all ranks again from the last commit"));
    CHECK_THAT(said[1 - failed], Catch::Contains("not every rank came"));
    ranks.clear();
    CHECK(standin::violations().empty());
}

TEST_CASE("a group that does not come together is refused, with what is missing") {
    reset_devices(2);
    const auto device = device_of(0);
    const auto make = [&](NcclRank options) {
        options.library = SPILLWAY_CUDA_STANDIN;
        options.id = make_nccl_id(SPILLWAY_CUDA_STANDIN);
        return make_nccl_communicator(options, *device);
    };
    CHECK_THAT(thrown_by([&] { make({.rank = 1, .ranks = 2, .patience_s = 0.05}); }),
               Catch::Contains("rank 1 of 2: ncclCommInitRankConfig: not every rank came"));
    CHECK_THROWS_WITH(make({.rank = 2, .ranks = 2}), Catch::Contains("rank 2 of 2"));
    SimOptions sim_options;
    sim_options.capacity_bytes = capacity;
    const auto sim = make_sim_device(sim_options);
    CHECK_THROWS_WITH(make_nccl_communicator({.id = {}, .library = SPILLWAY_CUDA_STANDIN}, *sim),
                      Catch::Contains("belongs to no GPU"));
    const auto alone = make({.ranks = 1});
    CHECK_THROWS_WITH(alone->broadcast(*device->create_stream("rank"), nullptr, 4, 1),
                      Catch::Contains("rank 1") && Catch::Contains("1 ranks"));

    standin::fail_call("ncclGetUniqueId", 1, nccl::system_error);
    CHECK_THAT(thrown_by([] { static_cast<void>(make_nccl_id(SPILLWAY_CUDA_STANDIN)); }),
               Catch::Contains("ncclGetUniqueId failed with 'unhandled system error' (2)") &&
                   Catch::Contains("NCCL_DEBUG=WARN"));
}

TEST_CASE("two ranks of one device are refused by NCCL, and said so") {
    reset_devices(1);
    const auto id = make_nccl_id(SPILLWAY_CUDA_STANDIN);
    std::vector<std::string> said(2);
    in_threads(2, [&](unsigned r) {
        const auto device = device_of(0);
        said[r] = thrown_by([&] {
            static_cast<void>(
                make_nccl_communicator({id, r, 2, 0.2, SPILLWAY_CUDA_STANDIN}, *device));
        });
    });
    CHECK_THAT(said[0] + said[1],
               Catch::Contains("invalid usage") && Catch::Contains("a device of its own"));
}

TEST_CASE("a library that is no NCCL is refused with what it lacks and what to do") {
    CHECK_THROWS_AS(NcclLibrary::load("/nowhere/libnccl.so.2"), NcclUnavailable);
    CHECK_THROWS_WITH(NcclLibrary::load("/nowhere/libnccl.so.2"),
                      Catch::Contains("/nowhere/libnccl.so.2") && Catch::Contains("install"));
    CHECK_THROWS_WITH(NcclLibrary::load("libm.so.6"), Catch::Contains("'ncclGetErrorString'"));
}
