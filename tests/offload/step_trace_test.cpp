// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/step_trace.h"

#include <chrono>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "cuda/device.h"
#include "offload/stream_span.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tight_limit.h"

using Catch::Matchers::Contains;
using Json = nlohmann::json;
namespace fs = std::filesystem;
using namespace std::chrono_literals;
using namespace spillway::offload;

namespace {

struct Warnings {
    std::vector<std::string> texts;  // of the trace's thread: read after finish()
    std::function<void(const std::string&)> sink() {
        return [this](const std::string& text) { texts.push_back(text); };
    }
};

Json parse(const fs::path& file) {
    std::ifstream in(file);
    return Json::parse(in);
}

std::vector<Json> events_of(const Json& trace, const std::string& name) {
    std::vector<Json> found;
    for (const auto& event : trace.at("traceEvents")) {
        if (event.at("ph") == "X" && event.at("name") == name)
            found.push_back(event);
    }
    return found;
}

double whole(const TraceLaneTimes& lane) {
    return std::accumulate(lane.idle_s.begin(), lane.idle_s.end(), lane.busy_s);
}

fs::path partial_of(const fs::path& file) {
    return file.string() + ".spillway-partial";
}

/// Far more than the ring holds, at a pace that the disk keeps up with.
void record_many(TraceRow row, std::uint64_t events) {
    for (std::uint64_t i = 0; i < events; ++i) {
        row.begin("work", {.what = "chunk", .number = i});
        row.end();
        if (i % 256 == 0)
            std::this_thread::sleep_for(1ms);
    }
}

}  // namespace

TEST_CASE("step trace: the file tells lanes, events and what they add up to") {
    const spillway::testing::TemporaryFolder folder;
    const auto file = folder.path() / "t.json";
    Warnings warnings;
    {
        StepTrace trace(file, warnings.sink());
        const auto lane = trace.add_lane({"update", TraceCause::cpu, {}});
        const auto row = trace.add_row(lane);
        const auto waits = trace.add_wait_row(lane, "update waits");
        const auto steps = trace.add_mark_row("steps");
        row.begin("before", {});
        trace.start();
        row.end();
        steps.begin("step", {.what = "step", .number = 1});
        row.begin("update", {.what = "chunk", .number = 3, .bytes = 4096});
        std::this_thread::sleep_for(2ms);
        row.end();
        waits.begin_wait();
        std::this_thread::sleep_for(2ms);
        waits.end_wait(TraceCause::nvme_read);
        steps.end();
        row.begin("dropped");
        row.drop();
        row.begin("open");
        CHECK_FALSE(fs::exists(file));
        trace.stop();
        row.end();
        row.begin("after");
        row.end();
        const auto& summary = trace.finish();
        CHECK(summary.failure.empty());
        CHECK(summary.dropped_events == 0);
        REQUIRE(summary.lanes.size() == 1);
        CHECK(whole(summary.lanes.front()) == Approx(summary.wall_s));
        CHECK(&trace.finish() == &summary);
    }
    CHECK(warnings.texts.empty());
    CHECK_FALSE(fs::exists(partial_of(file)));
    const auto json = parse(file);
    CHECK(events_of(json, "before").size() == 1);
    CHECK(events_of(json, "open").size() == 1);
    CHECK(events_of(json, "after").empty());
    CHECK(events_of(json, "dropped").empty());
    CHECK(events_of(json, "step").size() == 1);
    const auto update = events_of(json, "update").at(0);
    CHECK(update["args"]["chunk"] == 3);
    CHECK(update["args"]["bytes"] == 4096);
    CHECK(update["dur"].get<double>() >= 2000);
    const auto waited = events_of(json, "nvme_read").at(0);
    CHECK(waited["ts"].get<double>() >= update["ts"].get<double>() + update["dur"].get<double>());
    const auto& other = json["otherData"];
    CHECK(other["events"] == 5);
    const auto& lane = other["lanes"].at(0);
    CHECK(lane["name"] == "update");
    CHECK(lane["tids"] == Json::array({update["tid"]}));
    CHECK(lane["idle_s"]["nvme_read"].get<double>() >= 0.002);
}

TEST_CASE("step trace: an empty row records nothing, and a stream span queues nothing then") {
    auto device = spillway::cuda::make_device("sim:1MiB", 0);
    auto stream = device->create_stream("s");
    const TraceRow nowhere;
    CHECK_FALSE(nowhere.records());
    nowhere.begin("x");
    nowhere.end();
    { const StreamSpan span(*stream, nowhere, "x"); }
    stream->synchronize();
    CHECK(device->statistics().kernel_busy_s == 0);
}

TEST_CASE("step trace: a stream's span is as long as the stream takes") {
    const spillway::testing::TemporaryFolder folder;
    auto device = spillway::cuda::make_device("sim:1MiB", 0);
    auto stream = device->create_stream("s");
    StepTrace trace(folder.path() / "t.json", [](const std::string&) {});
    const auto row = trace.add_row(trace.add_lane({"compute", TraceCause::compute, {}}));
    trace.start();
    {
        const StreamSpan span(*stream, row, "forward", {.what = "block", .number = 1});
        stream->launch("slow", [] { std::this_thread::sleep_for(5ms); });
    }
    stream->synchronize();
    trace.stop();
    const auto& lane = trace.finish().lanes.at(0);
    CHECK(lane.busy_s >= 0.005);
    CHECK(events_of(parse(folder.path() / "t.json"), "forward").size() == 1);
}

TEST_CASE("step trace: many threads, and more events than its memory holds") {
    constexpr std::size_t threads = 4;
    constexpr std::uint64_t events = 2500;
    const spillway::testing::TemporaryFolder folder;
    StepTrace trace(folder.path() / "t.json", [](const std::string&) {});
    const auto lane = trace.add_lane({"work", TraceCause::cpu, {}});
    trace.start();
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < threads; ++i)
        workers.emplace_back([&trace, lane] { record_many(trace.add_row(lane), events); });
    for (auto& worker : workers)
        worker.join();
    const auto& summary = trace.finish();
    CHECK(summary.events + summary.dropped_events == threads * events);
    CHECK(whole(summary.lanes.at(0)) == Approx(summary.wall_s));
    const auto json = parse(folder.path() / "t.json");
    CHECK(events_of(json, "work").size() == summary.events);
    std::map<int, double> ends;  // of each row: its events come in order and do not overlap
    for (const auto& event : events_of(json, "work")) {
        auto& end = ends[event["tid"].get<int>()];
        REQUIRE(event["ts"].get<double>() >= end - 1e-6);
        end = event["ts"].get<double>() + event["dur"].get<double>();
    }
    CHECK(ends.size() == threads);
    CHECK(StepTrace::memory_bytes() < (std::size_t{1} << 20));
}

TEST_CASE("step trace: a disk that fills ends the file early, is told once, and hurts nobody") {
    const spillway::testing::TemporaryFolder folder;
    const auto file = folder.path() / "t.json";
    Warnings warnings;
    StepTrace trace(file, warnings.sink());
    const auto lane = trace.add_lane({"work", TraceCause::cpu, {}});
    const auto row = trace.add_row(lane);
    // Rows are told at the end of the file: some bytes, or most of what there is room for.
    const auto more_rows = GENERATE(0, 700);
    for (int i = 0; i < more_rows; ++i)
        static_cast<void>(trace.add_row(lane, std::string(200, 'x')));
    trace.start();
    TraceSummary summary;
    {
        const spillway::testing::TightLimit limit(RLIMIT_FSIZE, rlim_t{800} << 10);
        record_many(row, 12'000);
        summary = trace.finish();
    }
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts.front(), Contains(file.string()) && Contains("the run goes on"));
    CHECK(summary.failure == warnings.texts.front());
    CHECK(summary.events > 500);
    CHECK(summary.events + summary.dropped_events == 12'000);
    CHECK(whole(summary.lanes.at(0)) == Approx(summary.wall_s));
    const auto json = parse(file);
    CHECK(events_of(json, "work").size() == summary.events);
    CHECK(json["otherData"]["dropped_events"] == summary.dropped_events);
}

TEST_CASE("step trace: a disk without room for the end leaves no file and says why") {
    const spillway::testing::TemporaryFolder folder;
    const auto file = folder.path() / "t.json";
    Warnings warnings;
    StepTrace trace(file, warnings.sink());
    const auto row = trace.add_row(trace.add_lane({"work", TraceCause::cpu, {}}));
    trace.start();
    row.begin("work");
    TraceSummary summary;
    {
        const spillway::testing::TightLimit limit(RLIMIT_FSIZE, rlim_t{300});  // the event fits
        summary = trace.finish();
    }
    REQUIRE(warnings.texts.size() == 1);
    CHECK(summary.failure == warnings.texts.front());
    CHECK(summary.events == 0);
    CHECK(summary.dropped_events == 1);
    CHECK_FALSE(fs::exists(file));
}

#if !defined(__SANITIZE_ADDRESS__)  // beside it the other sanitizer opens pipes to look at memory
TEST_CASE("step trace: of a file that has its name nothing is reported") {
    const spillway::testing::TemporaryFolder folder;
    const auto file = folder.path() / "t.json";
    Warnings warnings;
    StepTrace trace(file, warnings.sink());
    trace.start();
    {
        // So that no folder can be opened to flush it.
        const spillway::testing::TightLimit limit(RLIMIT_NOFILE, 0);
        CHECK(trace.finish().failure.empty());
    }
    CHECK(warnings.texts.empty());
    CHECK(parse(file)["otherData"]["events"] == 0);
}
#endif

TEST_CASE("step trace: places where no trace can be are refused at once") {
    const spillway::testing::TemporaryFolder folder;
    const auto pipe = folder.path() / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    const std::vector<std::pair<fs::path, std::string>> places{
        {folder.path() / "none" / "t.json", "is not there"},
        {folder.path(), "it is a folder"},
        {pipe, "it is not a file"},
        {"", "it has no name"},
        {"/dev/null", "it is not a file"},
        {folder.path() / std::string(300, 'x'), "cannot be written"}};
    for (const auto& [file, said] : places)
        CHECK_THROWS_WITH(StepTrace(file, [](const std::string&) {}), Contains(said));
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("step trace: a former file stays until the new one is whole, and a link stays a link") {
    const spillway::testing::TemporaryFolder folder;
    const auto file = folder.path() / "t.json";
    std::ofstream(file) << "former";
    std::ofstream(partial_of(file)) << "of a run that was killed";
    const auto link = folder.path() / "link.json";
    fs::create_symlink("t.json", link);
    {
        StepTrace never_started(link, [](const std::string&) {});
    }
    CHECK(fs::file_size(file) == 6);
    {
        StepTrace trace(link, [](const std::string&) {});
        trace.start();
        CHECK(fs::file_size(file) == 6);
    }
    CHECK(fs::is_symlink(link));
    CHECK(parse(file)["otherData"]["events"] == 0);
}
