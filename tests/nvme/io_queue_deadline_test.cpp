// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// What is told of requests that do not end in time.
#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/io_queue.h"
#include "tests/nvme/queue_bench.h"
#include "tests/support/watchdog.h"

using namespace spillway::nvme;
using spillway::testing::FakeScript;
using spillway::testing::Watchdog;
using testing::Bench;

namespace {

/// A drive that answers nothing while it is shut, and what is reported meanwhile.
class HungDrive {
  public:
    FakeScript script() {
        FakeScript script;
        script.before_wait = [this] {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return open_; });
        };
        return script;
    }
    IoQueue::Options options() {
        IoQueue::Options options;
        options.deadline_s = 0.02;
        options.on_overdue = [this](std::span<const PendingIo> overdue) {
            const std::lock_guard lock(mutex_);
            reported_.insert(reported_.end(), overdue.begin(), overdue.end());
            open_ = open_ || reported_.size() >= opens_after_;
            changed_.notify_all();
        };
        return options;
    }
    void set_open(bool open) {
        const std::lock_guard lock(mutex_);
        open_ = open;
        changed_.notify_all();
    }
    void open_after(std::size_t reports) {
        const std::lock_guard lock(mutex_);
        opens_after_ = reports;
    }
    /// Once so many have been reported.
    std::vector<PendingIo> await_reports(std::size_t count) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return reported_.size() >= count; });
        return reported_;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<PendingIo> reported_;
    std::size_t opens_after_ = ~std::size_t{0};
    bool open_ = true;
};

}  // namespace

TEST_CASE("io_queue: what passes its deadline is reported once, and still ends") {
    const Watchdog watchdog(std::chrono::seconds(30));
    HungDrive drive;
    drive.set_open(false);
    Bench bench(drive.script(), drive.options());
    std::vector<IoTicket> tickets;
    tickets.push_back(
        bench.queue.submit(IoRequest::make_write(bench.file, 12288, bench.memory(4096))));
    const PendingIo first = drive.await_reports(1).front();
    CHECK(first.operation == IoOperation::write);
    CHECK(first.offset_bytes == 12288);
    CHECK(first.length_bytes == 4096);
    CHECK(first.path == bench.file.path());
    CHECK(first.age_s >= 0.02);
    CHECK_FALSE(tickets[0].done());

    // A later one is reported too; the first is not again.
    tickets.push_back(bench.queue.submit(IoRequest::make_flush(bench.file)));
    const auto reports = drive.await_reports(2);
    CHECK(reports.size() == 2);
    CHECK(reports.back().operation == IoOperation::flush);
    CHECK(bench.queue.pending().size() == 2);
    drive.set_open(true);
    for (IoTicket& ticket : tickets)
        CHECK(ticket.wait().ok());
    CHECK(bench.queue.pending().empty());
}

TEST_CASE("io_queue: a drive that hangs while its queue is destroyed is reported") {
    const Watchdog watchdog(std::chrono::seconds(30));
    HungDrive drive;
    drive.set_open(false);
    drive.open_after(2);  // only a report made during the destruction can end it
    std::vector<IoTicket> tickets;
    {
        Bench bench(drive.script(), drive.options());
        for (const std::uint64_t offset : {0U, 8192U})
            tickets.push_back(
                bench.queue.submit(IoRequest::make_write(bench.file, offset, bench.memory(4096))));
    }
    for (IoTicket& ticket : tickets)
        CHECK(ticket.done());
    CHECK(drive.await_reports(2).size() == 2);
}

TEST_CASE("io_queue: a deadline that cannot be kept is refused") {
    IoQueue::Options options;
    options.deadline_s = GENERATE(-1.0, std::numeric_limits<double>::quiet_NaN(), 1e300);
    options.on_overdue = [](std::span<const PendingIo>) {};
    REQUIRE_THROWS_AS(Bench({}, options), std::invalid_argument);
    options.deadline_s = 1;
    options.on_overdue = {};
    REQUIRE_THROWS_AS(Bench({}, options), std::invalid_argument);
}
