// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/trace/trace_file.h"

#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"
#include "tests/support/tight_limit.h"

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
using spillway::offload::detail::TraceFile;
using spillway::testing::TemporaryFolder;

namespace {

std::string text_of(const fs::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
}

fs::path partial_of(const fs::path& file) {
    return file.string() + ".spillway-partial";
}

std::string end(std::uint64_t) {
    return "end";
}

}  // namespace

TEST_CASE("trace file: events are given back until the closing piece fits") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "t";
    TraceFile file(path, "head\n", 1);
    std::vector<std::string> lines;
    for (int i = 0; i < 3000; ++i) {
        lines.push_back(",\nline " + std::to_string(i));
        file.append(lines.back());
    }
    REQUIRE(file.failure().empty());
    std::vector<std::uint64_t> asked;
    const auto tail = [](std::uint64_t events) {
        return "\n" + std::to_string(events) + std::string(9000, '.');
    };
    {
        const auto has_bytes = fs::file_size(partial_of(path));
        const spillway::testing::TightLimit limit(RLIMIT_FSIZE, has_bytes - 12'000);
        file.publish([&](std::uint64_t events) {
            asked.push_back(events);
            return tail(events);
        });
    }
    CHECK_THAT(file.failure(), Contains("File too large"));
    CHECK(asked.size() == 3);
    CHECK(asked.front() == 3000);
    REQUIRE(asked.back() > 0);
    REQUIRE(asked.back() < 2000);
    const auto left = lines.begin() + static_cast<std::ptrdiff_t>(asked.back());
    CHECK(text_of(path) ==
          std::accumulate(lines.begin(), left, std::string("head\n")) + tail(asked.back()));
}

TEST_CASE("trace file: a second run that names the same file is refused, and spoils nothing") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "t";
    const auto link = folder.path() / "link";
    fs::create_symlink("t", link);
    TraceFile first(path, "first ", 1);
    for (const auto& name : {path, link})
        CHECK_THROWS_WITH(TraceFile(name, "second ", 1),
                          Contains(name.string()) &&
                              Contains("another run writes its trace there; name another file"));
    first.publish(end);
    CHECK(text_of(path) == "first end");
    { const TraceFile after(path, "after ", 1); }
    CHECK(text_of(path) == "first end");
    CHECK_FALSE(fs::exists(partial_of(path)));
}

TEST_CASE("trace file: a partial file that is not its own any more is left alone") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "t";
    {
        TraceFile file(path, "head ", 1);
        fs::remove(partial_of(path));
        std::ofstream(partial_of(path)) << "another's";
        CHECK_THROWS_WITH(file.publish(end), Contains("was taken away"));
    }
    CHECK_FALSE(fs::exists(path));
    CHECK(text_of(partial_of(path)) == "another's");
}

TEST_CASE("trace file: one that a killed run left is used again, from its start") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "t";
    std::ofstream(partial_of(path)) << std::string(9000, '!');
    TraceFile file(path, "head ", 1);
    CHECK(text_of(partial_of(path)) == "head ");
    file.publish(end);
    CHECK(text_of(path) == "head end");
}

TEST_CASE("trace file: a link whose file is not there yet is followed too") {
    const TemporaryFolder folder;
    fs::create_directory(folder.path() / "far");
    const auto link = folder.path() / "link";
    fs::create_symlink("far/t", link);
    TraceFile(link, "head ", 1).publish(end);
    CHECK(fs::is_symlink(link));
    CHECK(text_of(folder.path() / "far" / "t") == "head end");
}

TEST_CASE("trace file: a disk that is full at the start is refused with what it has") {
    const TemporaryFolder folder;
    constexpr std::uint64_t more_than_any = std::uint64_t{1} << 62;
    CHECK_THROWS_WITH(TraceFile(folder.path() / "t", "head", more_than_any),
                      Contains("bytes of room") && Contains(std::to_string(more_than_any)));
    CHECK(fs::is_empty(folder.path()));
}
