// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// Who goes first when a drive has more to do than it can, and what is said while it does nothing.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <semaphore>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/io_queue.h"
#include "tests/nvme/queue_bench.h"

using namespace spillway::nvme;
using Catch::Contains;
using spillway::testing::FakeScript;
using testing::Bench;
using testing::mebibyte;

namespace {

constexpr std::size_t block = 4096;
constexpr std::uint64_t prefetch_offset = mebibyte;  // tells prefetch reads from demand reads
constexpr std::ptrdiff_t for_ever = 100'000;

/// A drive that ends one operation for each permit. The queue's thread looks at it once a turn.
class Gate {
  public:
    FakeScript script(std::size_t depth = 32) const {
        FakeScript closed;
        closed.depth = depth;
        closed.most_completions = 1;
        closed.before_wait = [shared = shared_] {
            ++shared->turns;
            shared->permits.acquire();
        };
        return closed;
    }
    void open(std::ptrdiff_t permits = for_ever) const { shared_->permits.release(permits); }
    /// Until the queue's thread has come to its n-th turn.
    void await_turn(int turn) const {
        while (shared_->turns < turn)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }

  private:
    struct Shared {
        std::atomic<int> turns = 0;
        std::counting_semaphore<2 * for_ever> permits{0};
    };
    std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

/// What was submitted to a bench whose file is large enough to be read.
class Traffic {
  public:
    explicit Traffic(Bench& bench) : bench_(bench) { bench_.file.preallocate(4 * mebibyte); }

    void writes(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i)
            add(IoRequest::make_write(bench_.file, i * block, bench_.memory(block)));
    }
    void demand_reads(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i)
            add(IoRequest::make_read(bench_.file, i * block, bench_.memory(block)));
    }
    void prefetch_reads(std::size_t count) {
        for (std::size_t i = 0; i < count; ++i)
            add(IoRequest::make_read(bench_.file, prefetch_offset + i * block, bench_.memory(block),
                                     ReadPriority::prefetch));
    }
    void add(const IoRequest& request) { tickets_.push_back(bench_.queue.submit(request)); }
    void wait() {
        for (IoTicket& ticket : tickets_)
            ticket.wait().throw_if_error();
    }

    /// The operations in the order in which they started: w(rite), f(lush), d(emand), p(refetch).
    [[nodiscard]] std::string started() const {
        std::string kinds;
        for (const BackendOperation& one : bench_.log->operations) {
            if (one.operation == IoOperation::read)
                kinds += one.offset_bytes < prefetch_offset ? 'd' : 'p';
            else
                kinds += one.operation == IoOperation::write ? 'w' : 'f';
        }
        return kinds;
    }

  private:
    Bench& bench_;
    std::vector<IoTicket> tickets_;
};

}  // namespace

TEST_CASE("io_queue: a demand read behind a full queue of write-backs is started next") {
    const Gate gate;
    Bench bench(gate.script(), {.depth = 4, .max_operation_bytes = block});
    Traffic traffic(bench);
    gate.await_turn(1);
    traffic.writes(12);
    gate.open(1);  // the queue's thread takes the writes: 4 start, 8 wait
    gate.await_turn(2);
    traffic.demand_reads(1);
    gate.open();
    traffic.wait();
    REQUIRE(traffic.started() == "wwwwdwwwwwwww");
}

TEST_CASE("io_queue: a demand read overtakes the rest of a large write") {
    const Gate gate;
    Bench bench(gate.script(), {.depth = 2, .max_operation_bytes = block});
    Traffic traffic(bench);
    gate.await_turn(1);
    traffic.add(IoRequest::make_write(bench.file, 0, bench.memory(6 * block)));
    gate.open(1);
    gate.await_turn(2);
    traffic.demand_reads(1);
    gate.open();
    traffic.wait();
    REQUIRE(traffic.started() == "wwdwwww");
}

TEST_CASE("io_queue: demand before prefetch before write-back, and none of them starves") {
    const Gate gate;
    Bench bench(gate.script(), {.depth = 1, .max_operation_bytes = block});
    Traffic traffic(bench);
    gate.await_turn(1);
    traffic.writes(3);
    traffic.prefetch_reads(3);
    traffic.demand_reads(6);
    gate.open();
    traffic.wait();
    // After four others each of the overtaken kinds has a turn, the lowest first.
    REQUIRE(traffic.started() == "ddddwpddpwpw");
}

TEST_CASE("io_queue: under endless demand reads one operation in six is a write") {
    const Gate gate;
    Bench bench(gate.script(), {.depth = 1, .max_operation_bytes = block});
    Traffic traffic(bench);
    gate.await_turn(1);
    traffic.writes(20);
    traffic.prefetch_reads(100);
    traffic.demand_reads(200);
    gate.open();
    traffic.wait();
    const std::string all = traffic.started();
    std::size_t seen = 0;
    for (std::size_t written = 0; written < 20; ++written) {
        const std::size_t next = all.find('w', seen);
        REQUIRE(next - seen <= 6);
        seen = next + 1;
    }
}

TEST_CASE("io_queue: a flush keeps its place among the writes") {
    const Gate gate;
    Bench bench(gate.script(), {.depth = 1, .max_operation_bytes = block});
    Traffic traffic(bench);
    gate.await_turn(1);
    traffic.writes(2);
    traffic.add(IoRequest::make_flush(bench.file));
    traffic.writes(1);
    traffic.demand_reads(1);
    gate.open();
    traffic.wait();
    REQUIRE(traffic.started() == "dwwfw");
}

TEST_CASE("io_queue: reads and writes have limits of their own") {
    const Gate gate;
    Bench bench(gate.script(),
                {.depth = 8, .max_operation_bytes = block, .read_depth = 3, .write_depth = 2});
    Traffic traffic(bench);
    gate.await_turn(1);
    SECTION("writes leave room, so that a read starts at once") {
        traffic.writes(12);
        gate.open(1);
        gate.await_turn(2);
        traffic.demand_reads(1);
        gate.open();
        traffic.wait();
        REQUIRE(traffic.started() == "wwdwwwwwwwwww");
        REQUIRE(bench.log->most_in_flight == 3);
    }
    SECTION("both together") {
        traffic.writes(10);
        traffic.demand_reads(10);
        gate.open();
        traffic.wait();
        REQUIRE(traffic.started().substr(0, 5) == "dddww");
        REQUIRE(bench.log->most_in_flight == 5);
        REQUIRE(bench.log->operations.size() == 20);
    }
}

TEST_CASE("io_queue: what a hung drive holds up is named while it hangs") {
    const Gate gate;
    Bench bench(gate.script(), {.depth = 2, .max_operation_bytes = block});
    Traffic traffic(bench);
    REQUIRE(bench.queue.pending().empty());
    traffic.add(IoRequest::make_write(bench.file, 8192, bench.memory(3 * block)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    traffic.demand_reads(1);
    traffic.add(IoRequest::make_flush(bench.file));

    const std::vector<PendingIo> pending = bench.queue.pending();
    REQUIRE(pending.size() == 3);
    CHECK(pending[0].operation == IoOperation::write);
    CHECK(pending[0].path == bench.file.path());
    CHECK(pending[0].offset_bytes == 8192);
    CHECK(pending[0].length_bytes == 3 * block);
    CHECK(pending[0].age_s >= 0.02);
    CHECK(pending[1].age_s < pending[0].age_s);
    CHECK_THAT(pending[0].text(), Contains("write of 12288 bytes at offset 8192 of " +
                                           bench.file.path().string() + ", pending for 0."));
    CHECK_THAT(pending[1].text(), Contains("read of 4096 bytes at offset 0 of "));
    CHECK_THAT(pending[2].text(), Contains("flush of " + bench.file.path().string()));
    gate.open();
    traffic.wait();
    REQUIRE(bench.queue.pending().empty());
}

TEST_CASE("io_queue: requests that failed, or whose backend broke, are pending no more") {
    FakeScript script;
    SECTION("failed") {
        script.result = [](const BackendOperation&, std::size_t) {
            return std::optional<std::int64_t>(-EIO);
        };
    }
    SECTION("broke") {
        script.accept = [](std::size_t) -> std::size_t {
            throw std::system_error(EIO, std::generic_category(), "gone");
        };
    }
    Bench bench(script, {.depth = 2, .max_operation_bytes = block});
    REQUIRE_FALSE(bench.write(8 * block).ok());
    REQUIRE_FALSE(bench.write(block).ok());
    REQUIRE(bench.queue.pending().empty());
}
