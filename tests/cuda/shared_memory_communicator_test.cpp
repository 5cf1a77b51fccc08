// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/communicator.h"
#include "cuda/sim_device.h"
#include "tests/cuda/rank.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
using namespace spillway::testing;

namespace {

std::vector<Rank> make_ranks(unsigned count, double patience_s = 60) {
    auto communicators =
        make_shared_memory_communicators({.ranks = count, .patience_s = patience_s});
    std::vector<Rank> ranks;
    for (unsigned r = 0; r < count; ++r) {
        SimOptions options;
        options.name = "sim " + std::to_string(r);
        options.capacity_bytes = std::size_t{1} << 20;
        options.max_random_delay_s = 200e-6;
        options.seed = r;
        Rank rank;
        rank.device = make_sim_device(options);
        rank.stream = rank.device->create_stream("rank");
        rank.communicator = std::move(communicators[r]);
        ranks.push_back(std::move(rank));
    }
    return ranks;
}

std::vector<float> sum_in_rank_order(const std::vector<std::vector<float>>& all) {
    std::vector<float> sum = all.front();
    for (std::size_t r = 1; r < all.size(); ++r)
        for (std::size_t i = 0; i < sum.size(); ++i)
            sum[i] += all[r][i];
    return sum;
}

}  // namespace

TEST_CASE("ranks gather, reduce and broadcast to the bits of sums in rank order") {
    const unsigned count = GENERATE(1u, 2u, 3u, 4u);
    constexpr std::size_t share = 777;
    auto ranks = make_ranks(count);
    std::vector<std::vector<float>> inputs;
    std::vector<DeviceBuffer> all, shares;
    for (unsigned r = 0; r < count; ++r) {
        inputs.push_back(numbers(count * share, 5 + r));
        all.push_back(sent(ranks[r], inputs[r]));
        shares.push_back(ranks[r].device->allocate(share * sizeof(float)));
    }
    for (unsigned r = 0; r < count; ++r) {
        auto& [device, stream, communicator] = ranks[r];
        CHECK(communicator->rank() == r);
        CHECK(communicator->ranks() == count);
        communicator->reduce_scatter(*stream, all[r].as<float>(), shares[r].as<float>(), share);
        communicator->all_gather(*stream, shares[r].data(), all[r].data(), share * sizeof(float));
    }
    const auto sum = sum_in_rank_order(inputs);
    std::vector<std::vector<float>> sums;
    for (unsigned r = 0; r < count; ++r) {
        CHECK(received(ranks[r], shares[r].as<float>(), share) ==
              std::vector<float>(sum.begin() + r * share, sum.begin() + (r + 1) * share));
        sums.push_back(received(ranks[r], all[r].as<float>(), count * share));
        CHECK(sums[r] == sum);
    }
    for (unsigned r = 0; r < count; ++r)
        ranks[r].communicator->all_reduce(*ranks[r].stream, all[r].as<float>(), count * share - 1);
    for (unsigned r = 0; r < count; ++r) {
        auto expected = sum_in_rank_order(sums);
        expected.back() = sum.back();  // one element was left out
        CHECK(received(ranks[r], all[r].as<float>(), count * share) == expected);
    }
    for (unsigned r = 0; r < count; ++r) {
        all[r] = sent(ranks[r], inputs[r]);
        ranks[r].communicator->broadcast(*ranks[r].stream, all[r].data(), 4 * share, count - 1);
    }
    for (unsigned r = 0; r < count; ++r)
        CHECK(received(ranks[r], all[r].as<float>(), share) ==
              std::vector<float>(inputs.back().begin(), inputs.back().begin() + share));
}

TEST_CASE("a share may lie at its own place, and many operations follow each other") {
    constexpr unsigned count = 3;
    constexpr std::size_t share = 50;
    auto ranks = make_ranks(count);
    std::vector<std::vector<float>> state;
    std::vector<DeviceBuffer> all;
    for (unsigned r = 0; r < count; ++r) {
        state.push_back(numbers(count * share, 90 + r));
        all.push_back(sent(ranks[r], state[r]));
    }
    for (int round = 0; round < 30; ++round) {
        for (unsigned r = 0; r < count; ++r) {
            auto* const own = all[r].as<float>() + r * share;
            ranks[r].communicator->reduce_scatter(*ranks[r].stream, all[r].as<float>(), own, share);
            ranks[r].stream->launch("halve", [own] {
                for (std::size_t i = 0; i < share; ++i)
                    own[i] *= 0.25F;
            });
            ranks[r].communicator->all_gather(*ranks[r].stream, reinterpret_cast<std::byte*>(own),
                                              all[r].data(), share * sizeof(float));
        }
        auto next = sum_in_rank_order(state);
        for (float& value : next)
            value *= 0.25F;
        state.assign(count, next);
    }
    for (unsigned r = 0; r < count; ++r)
        CHECK(received(ranks[r], all[r].as<float>(), count * share) == state[r]);
}

TEST_CASE("a rank that does not come is named on every other rank, in bounded time") {
    auto ranks = make_ranks(3, 0.05);
    const auto buffer = ranks[0].device->allocate(4096);
    const auto other = ranks[2].device->allocate(4096);
    ranks[0].communicator->all_reduce(*ranks[0].stream, buffer.as<float>(), 8);
    ranks[2].communicator->all_reduce(*ranks[2].stream, other.as<float>(), 8);
    const auto names_it = Catch::Contains("all_reduce (call 1) of 3 ranks: rank 1 did not come");
    for (const unsigned r : {0u, 2u}) {
        CHECK_THROWS_AS(ranks[r].stream->synchronize(), CommunicationFailed);
        CHECK_THROWS_WITH(ranks[r].stream->synchronize(), names_it);
    }
    // The one that comes too late meets nobody.
    const auto late = ranks[1].device->allocate(4096);
    ranks[1].communicator->all_reduce(*ranks[1].stream, late.as<float>(), 8);
    CHECK_THROWS_WITH(ranks[1].stream->synchronize(), names_it);
}

TEST_CASE("a rank that has left is named at once, and what it had called before still counts") {
    auto ranks = make_ranks(2, 3600);
    const auto a = sent(ranks[0], {1, 2, 3, 4});
    const auto b = sent(ranks[1], {10, 20, 30, 40});
    for (auto& rank : ranks)
        rank.communicator->all_reduce(*rank.stream, (&rank == &ranks[0] ? a : b).as<float>(), 4);
    ranks[1].communicator.reset();
    CHECK(received(ranks[0], a.as<float>(), 4) == std::vector<float>{11, 22, 33, 44});
    CHECK(received(ranks[1], b.as<float>(), 4) == std::vector<float>{11, 22, 33, 44});
    ranks[0].communicator->broadcast(*ranks[0].stream, a.data(), 4, 1);
    CHECK_THROWS_WITH(ranks[0].stream->synchronize(),
                      Catch::Contains("broadcast (call 2) of 2 ranks: rank 1 has left"));
}

TEST_CASE("ranks that do different things are told so, each of them") {
    auto ranks = make_ranks(2);
    const auto a = ranks[0].device->allocate(4096);
    const auto b = ranks[1].device->allocate(4096);
    const bool same_operation = GENERATE(false, true);
    ranks[0].communicator->all_reduce(*ranks[0].stream, a.as<float>(), 8);
    if (same_operation)
        ranks[1].communicator->all_reduce(*ranks[1].stream, b.as<float>(), 9);
    else
        ranks[1].communicator->broadcast(*ranks[1].stream, b.data(), 32, 0);
    for (auto& rank : ranks)
        CHECK_THROWS_WITH(rank.stream->synchronize(),
                          Catch::Contains("do not agree") &&
                              Catch::Contains("all_reduce of 32 bytes") &&
                              Catch::Contains(same_operation ? "36 bytes" : "broadcast of 32"));
    CHECK_THROWS_WITH(ranks[0].communicator->broadcast(*ranks[0].stream, a.data(), 4, 2),
                      Catch::Contains("rank 2"));
    CHECK_THROWS_AS(make_shared_memory_communicators({.ranks = 0}), std::invalid_argument);
}

TEST_CASE("a rank whose stream has failed is missed at once") {
    auto ranks = make_ranks(2);
    std::vector<DeviceBuffer> buffers;
    for (auto& rank : ranks)
        buffers.push_back(sent(rank, {1, 2, 3, 4}));
    ranks[1].stream->launch("bad", [] { throw std::runtime_error("a bad kernel"); });
    for (unsigned r = 0; r < 2; ++r)
        ranks[r].communicator->all_reduce(*ranks[r].stream, buffers[r].as<float>(), 4);
    CHECK_THROWS_WITH(ranks[0].stream->synchronize(),
                      Catch::Contains("all_reduce (call 1) of 2 ranks") &&
                          Catch::Contains("the stream of rank 1 failed"));
    CHECK_THROWS_WITH(ranks[1].stream->synchronize(), "a bad kernel");
}

TEST_CASE("ranks do not meet in the memory of a device with kernels") {
    const auto device = make_standin_device(std::size_t{1} << 20);
    const auto buffer = device->allocate(4096);
    const auto stream = device->create_stream("rank");
    const auto ranks = make_shared_memory_communicators({.ranks = 1});
    auto& rank = *ranks[0];
    CHECK_THROWS_WITH(rank.all_reduce(*stream, buffer.as<float>(), 8),
                      Catch::Contains("all_reduce") && Catch::Contains("'sim'"));
    CHECK_THROWS_AS(rank.all_gather(*stream, buffer.data(), buffer.data(), 8),
                    std::invalid_argument);
    CHECK_THROWS_AS(rank.reduce_scatter(*stream, buffer.as<float>(), buffer.as<float>(), 8),
                    std::invalid_argument);
    CHECK_THROWS_AS(rank.broadcast(*stream, buffer.data(), 8, 0), std::invalid_argument);
    CHECK_NOTHROW(stream->synchronize());
}
