// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace/tracing_backend.h"

#include <fstream>
#include <map>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "nvme/huge_page_arena.h"
#include "nvme/io_queue.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temporary_folder.h"

using Json = nlohmann::json;
using namespace std::chrono_literals;
using namespace spillway;
using namespace spillway::offload;

TEST_CASE("tracing backend: every operation once, in its direction, at its place") {
    constexpr std::size_t block = 4096;
    constexpr std::size_t blocks = 24;
    const testing::TemporaryFolder folder;
    const auto file = folder.path() / "t.json";
    StepTrace trace(file, [](const std::string&) {});
    testing::FakeScript script;
    script.depth = 4;
    script.delay = 200us;
    script.order = testing::CompletionOrder::shuffled;
    script.accept = [](std::size_t offered) { return offered > 1 ? offered / 2 : offered; };
    const nvme::HugePageArena memory(block * blocks);
    trace.start();
    {
        nvme::IoQueue queue(std::make_unique<detail::TracingBackend>(
                                std::make_unique<testing::FakeBackend>(
                                    script, std::make_shared<testing::FakeLog>()),
                                trace, 0),
                            {.depth = script.depth});
        nvme::DirectFile data(folder.path() / "data", nvme::OpenMode::create_exclusive,
                              nvme::DirectMode::automatic);
        data.preallocate(block * blocks);
        for (const bool writing : {true, false}) {
            std::vector<nvme::IoTicket> tickets;
            for (std::size_t i = 0; i < blocks; ++i) {
                auto* const at = memory.bytes().data() + i * block;
                tickets.push_back(queue.submit(
                    writing ? nvme::IoRequest::make_write(data, i * block, {at, block})
                            : nvme::IoRequest::make_read(data, i * block, {at, block})));
            }
            for (auto& ticket : tickets)
                REQUIRE(ticket.wait().ok());
        }
        REQUIRE(queue.submit(nvme::IoRequest::make_flush(data)).wait().ok());
    }
    const auto& summary = trace.finish();
    REQUIRE(summary.lanes.size() == 2);
    CHECK(summary.lanes[0].name == "drive 0 reads");
    CHECK(summary.lanes[1].name == "drive 0 writes");
    CHECK(summary.lanes[0].rows.size() <= script.depth);
    CHECK(summary.lanes[0].busy_s > 0);
    std::ifstream in(file);
    const auto json = Json::parse(in);
    std::map<std::string, std::map<std::uint64_t, int>> seen;  // how often, by name and offset
    for (const auto& event : json["traceEvents"]) {
        if (event["ph"] == "X")
            ++seen[event["name"]]
                  [event.contains("args") ? event["args"]["offset"].get<std::uint64_t>() : 0];
    }
    for (const auto* name : {"read", "write"}) {
        REQUIRE(seen[name].size() == blocks);
        for (const auto& [offset, times] : seen[name])
            CHECK(times == 1);
    }
    CHECK(seen["flush"][0] == 1);
    CHECK(summary.events == 2 * blocks + 1);
}
