// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/completion_signal.h"

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/huge_page_arena.h"
#include "nvme/io_queue.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using spillway::testing::FakeBackend;
using spillway::testing::FakeLog;
using spillway::testing::FakeScript;
using spillway::testing::TemporaryFolder;

TEST_CASE("completion signal: an end between look and wait is not slept through") {
    CompletionSignal signal;
    const auto seen = signal.now();
    signal.notify();
    signal.wait_beyond(seen);
    CHECK(signal.now() != seen);
}

TEST_CASE("completion signal: a sleeper is woken by another thread") {
    CompletionSignal signal;
    const auto seen = signal.now();
    std::thread other([&] { signal.notify(); });
    signal.wait_beyond(seen);
    other.join();
    CHECK(signal.now() != seen);
}

TEST_CASE("completion signal: whoever waits for the first of several queues sees every end") {
    constexpr std::size_t queues = 3;
    constexpr std::size_t requests = 200;
    constexpr std::size_t block = 4096;
    const TemporaryFolder folder;
    CompletionSignal signal;
    HugePageArena arena(requests * block);
    std::vector<std::unique_ptr<DirectFile>> files;
    std::vector<std::unique_ptr<IoQueue>> all;
    std::vector<IoTicket> open;
    for (std::size_t i = 0; i < queues; ++i) {
        files.push_back(std::make_unique<DirectFile>(
            folder.path() / std::to_string(i), OpenMode::create_or_open, DirectMode::automatic));
        IoQueue::Options options;
        options.ended = &signal;
        all.push_back(std::make_unique<IoQueue>(
            std::make_unique<FakeBackend>(FakeScript{}, std::make_shared<FakeLog>()), options));
    }
    for (std::size_t i = 0; i < requests; ++i)
        open.push_back(all[i % queues]->submit(IoRequest::make_write(
            *files[i % queues], i * block, arena.bytes().subspan(i * block, block))));
    std::size_t ended = 0;
    while (!open.empty()) {
        const auto seen = signal.now();
        const auto done =
            std::ranges::find_if(open, [](const IoTicket& ticket) { return ticket.done(); });
        if (done == open.end()) {
            signal.wait_beyond(seen);
            continue;
        }
        CHECK(done->wait().ok());
        open.erase(done);
        ++ended;
    }
    CHECK(ended == requests);
}
