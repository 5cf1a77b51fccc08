// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/buffer_pool.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvme/io_queue.h"
#include "tests/nvme/patterns.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

using namespace spillway::nvme;
using Catch::Contains;
using spillway::testing::TemporaryFolder;
using spillway::testing::Watchdog;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// Asks for a buffer on a thread of its own.
class Waiter {
  public:
    Waiter(BufferPool& pool, ReadPriority priority)
        : thread_([this, &pool, priority] {
              lease_ = pool.acquire(priority);
              done_ = true;
          }) {
        // It has asked when it sleeps; a little later is early enough for that.
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ~Waiter() {
        if (thread_.joinable())
            thread_.join();
    }
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;

    [[nodiscard]] bool done() const { return done_; }
    BufferLease join() {
        thread_.join();
        return std::move(lease_);
    }

  private:
    BufferLease lease_;
    std::atomic<bool> done_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace

TEST_CASE("buffer_pool: leases are exact, on pages of their own, and never the same twice") {
    const std::size_t bytes = GENERATE(std::size_t{1}, std::size_t{4096}, std::size_t{5000});
    BufferPool pool({.buffer_bytes = bytes, .buffers = 7});
    CHECK(pool.buffers() == 7);
    std::vector<BufferLease> leases;
    std::set<const std::byte*> starts;
    for (std::size_t i = 0; i < 7; ++i) {
        leases.push_back(pool.acquire());
        CHECK(pool.free_buffers() == 6 - i);
        const auto found = leases.back().bytes();
        CHECK(found.size() == bytes);
        CHECK(reinterpret_cast<std::uintptr_t>(found.data()) % 4096 == 0);
        std::fill(found.begin(), found.end(), static_cast<std::byte>(i + 1));
        starts.insert(found.data());
    }
    CHECK(starts.size() == 7);
    for (std::size_t i = 0; i < 7; ++i)
        CHECK(std::all_of(leases[i].bytes().begin(), leases[i].bytes().end(),
                          [i](std::byte one) { return one == static_cast<std::byte>(i + 1); }));
    CHECK_FALSE(pool.try_acquire());
    leases.clear();
    CHECK(pool.free_buffers() == 7);
}

TEST_CASE("buffer_pool: it takes what is asked for, rounded up to huge pages, and no more") {
    const BufferPool pool({.buffer_bytes = 3 * mebibyte, .buffers = 21});
    CHECK(pool.size_bytes() == 64 * mebibyte);
    std::size_t registered_bytes = 0;
    for (const auto piece : pool.pieces()) {
        CHECK(piece.size() % (3 * mebibyte) == 0);
        CHECK(piece.size() <= 6 * mebibyte);
        registered_bytes += piece.size();
    }
    CHECK(registered_bytes == 63 * mebibyte);
    const BufferPool small({.buffer_bytes = 4096, .buffers = 100});
    CHECK(small.pieces().size() == 1);
    CHECK(small.pieces().front().size() == 100 * 4096);
}

TEST_CASE("buffer_pool: a lease moves, ends once, and outlives its pool") {
    std::optional<BufferPool> pool(std::in_place,
                                   BufferPool::Options{.buffer_bytes = 4096, .buffers = 2});
    BufferLease first = pool->acquire();
    auto* const data = first.bytes().data();
    BufferLease second(std::move(first));
    CHECK_FALSE(first);  // NOLINT(bugprone-use-after-move): that is what is looked at
    CHECK(second.bytes().data() == data);
    CHECK(pool->free_buffers() == 1);
    first = std::move(second);
    CHECK(pool->free_buffers() == 1);
    first = pool->acquire();
    CHECK(pool->free_buffers() == 1);
    first = {};
    CHECK(pool->free_buffers() == 2);
    first = pool->acquire();
    pool.reset();
    first.bytes().back() = std::byte{3};
    CHECK(first.bytes().back() == std::byte{3});
}

TEST_CASE("buffer_pool: who asks for more than there is waits, in order of asking") {
    const Watchdog watchdog(std::chrono::seconds(30));
    BufferPool pool({.buffer_bytes = 4096, .buffers = 1});
    BufferLease held = pool.acquire();
    Waiter first(pool, ReadPriority::demand);
    Waiter second(pool, ReadPriority::demand);
    CHECK_FALSE(first.done());
    held = {};
    held = first.join();
    CHECK(held);
    CHECK_FALSE(second.done());
    CHECK_FALSE(pool.try_acquire());
    held = {};
    CHECK(second.join());
}

TEST_CASE("buffer_pool: demand comes before prefetch, which leaves it what is kept") {
    const Watchdog watchdog(std::chrono::seconds(30));
    BufferPool pool({.buffer_bytes = 4096, .buffers = 2, .kept_for_demand = 1});
    BufferLease prefetched = pool.acquire(ReadPriority::prefetch);
    CHECK_FALSE(pool.try_acquire(ReadPriority::prefetch));
    BufferLease demanded = pool.acquire(ReadPriority::demand);
    Waiter prefetch(pool, ReadPriority::prefetch);
    Waiter demand(pool, ReadPriority::demand);
    demanded = {};
    demanded = demand.join();  // asked later, served first
    CHECK_FALSE(prefetch.done());
    demanded = {};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_FALSE(prefetch.done());  // the free one is kept
    CHECK(pool.try_acquire(ReadPriority::demand));
    prefetched = {};
    CHECK(prefetch.join());
}

TEST_CASE("buffer_pool: a closed pool ends every wait and keeps its leases whole") {
    const Watchdog watchdog(std::chrono::seconds(30));
    BufferPool pool({.buffer_bytes = 4096, .buffers = 1});
    BufferLease held = pool.acquire();
    Waiter waiter(pool, ReadPriority::prefetch);
    pool.close();
    CHECK_FALSE(waiter.join());
    held.bytes().front() = std::byte{1};
    held = {};
    CHECK_FALSE(pool.acquire());
    CHECK_FALSE(pool.try_acquire());
}

TEST_CASE("buffer_pool: threads that share it never hold one buffer together") {
    const Watchdog watchdog(std::chrono::seconds(60));
    BufferPool pool({.buffer_bytes = 8192, .buffers = 3, .kept_for_demand = 1});
    std::atomic<int> damaged = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t)
        threads.emplace_back([&, t] {
            const auto mark = static_cast<std::byte>(t + 1);
            for (int i = 0; i < 500; ++i) {
                const BufferLease lease =
                    pool.acquire(t % 2 == 0 ? ReadPriority::demand : ReadPriority::prefetch);
                std::fill(lease.bytes().begin(), lease.bytes().end(), mark);
                std::this_thread::yield();
                for (const std::byte one : lease.bytes())
                    damaged += one == mark ? 0 : 1;
            }
        });
    for (std::thread& thread : threads)
        thread.join();
    CHECK(damaged == 0);
    CHECK(pool.free_buffers() == 3);
}

TEST_CASE("buffer_pool: a forked child has none of the memory and leases nothing") {
    auto pool =
        std::make_unique<BufferPool>(BufferPool::Options{.buffer_bytes = 4096, .buffers = 2});
    auto lease = std::make_unique<BufferLease>(pool->acquire());
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(20);
#if !defined(__SANITIZE_THREAD__)  // whose runtime maps memory of its own where there is a gap
        unsigned char resident = 0;
        if (::mincore(lease->bytes().data(), 4096, &resident) == 0 || errno != ENOMEM)
            ::_exit(1);
#endif
        try {
            static_cast<void>(pool->acquire());
            ::_exit(2);
        } catch (const std::system_error& refused) {
            if (std::string(refused.what()).find("forked") == std::string::npos)
                ::_exit(3);
        }
        pool.reset();
        lease.reset();
        ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    lease->bytes().front() = std::byte{5};
    lease.reset();
    CHECK(pool->free_buffers() == 2);
}

TEST_CASE("buffer_pool: sizes that make no sense are refused by number") {
    const auto refusal = [](const BufferPool::Options& options) -> std::string {
        try {
            const BufferPool pool(options);
        } catch (const std::invalid_argument& error) {
            return error.what();
        }
        return {};
    };
    CHECK_THAT(refusal({}), Contains("0 buffers of 0 bytes"));
    CHECK_THAT(refusal({.buffer_bytes = 4096, .buffers = 3, .kept_for_demand = 3}),
               Contains("keeps 3"));
    constexpr auto huge = std::numeric_limits<std::size_t>::max();
    CHECK_THAT(refusal({.buffer_bytes = huge / 2, .buffers = 4}), Contains("address space"));
    CHECK_THAT(refusal({.buffer_bytes = huge, .buffers = 1}), Contains("address space"));
    CHECK_THROWS_AS(BufferPool({.buffer_bytes = std::size_t{1} << 50U, .buffers = 16}),
                    std::system_error);
}

TEST_CASE("buffer_pool: one that has too few buffers slows requests down and loses none") {
    const Watchdog watchdog(std::chrono::seconds(120));
    const TemporaryFolder folder;
    DirectFile file(folder.path() / "data", OpenMode::create_or_open, DirectMode::automatic);
    constexpr std::size_t block = 64 * 1024;
    constexpr std::size_t blocks = 64;
    BufferPool pool({.buffer_bytes = block, .buffers = 4, .kept_for_demand = 1});
    IoQueue::Options options{.depth = 32};
    options.fixed = {pool.pieces(), {&file}};
    IoQueue queue(make_backend(BackendKind::automatic, 32), options);
    struct Flight {
        BufferLease memory;
        IoTicket ticket;
    };
    for (std::size_t i = 0; i < blocks; ++i) {
        const Flight flight{pool.acquire(), {}};
        testing::fill_pattern(flight.memory.bytes(), i);
        queue.submit(IoRequest::make_write(file, i * block, flight.memory.bytes()))
            .wait()
            .throw_if_error();
    }
    std::vector<std::thread> readers;
    std::atomic<std::size_t> good = 0;
    for (std::size_t t = 0; t < 4; ++t)
        readers.emplace_back([&, t] {
            const auto priority = t == 0 ? ReadPriority::demand : ReadPriority::prefetch;
            for (std::size_t i = t; i < blocks; i += 4) {
                Flight flight{pool.acquire(priority), {}};
                flight.ticket = queue.submit(
                    IoRequest::make_read(file, i * block, flight.memory.bytes(), priority));
                good += flight.ticket.wait().ok() && testing::has_pattern(flight.memory.bytes(), i)
                            ? 1U
                            : 0U;
            }
        });
    for (std::thread& reader : readers)
        reader.join();
    CHECK(good == blocks);
}
