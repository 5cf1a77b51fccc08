// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/manifest.h"

#include <catch2/catch.hpp>

#include "tests/offload/sample_folders.h"

using namespace spillway::offload;
using namespace spillway::testing;

TEST_CASE("a manifest that is not understood is refused, naming what is wrong", "[manifest]") {
    const Places places;
    static_cast<void>(places.create(places.out));
    const auto path = places.out / "spillway.state" / "manifest.json";
    const auto text = file_text(path);
    // From the tensors on where asked: the run's identifier before them is random, and may hold any
    // short text.
    const auto with = [&](const std::string& from, const std::string& to,
                          const std::string& behind = "{") {
        auto changed = text;
        const auto place = changed.find(from, changed.find(behind));
        REQUIRE(place != std::string::npos);
        changed.replace(place, from.size(), to);
        set_file_text(path, changed);
        return refusal_of_open(places.out);
    };
    CHECK(with("\"generation\": 0", "\"generation\": 7").empty());
    CHECK_THAT(with("\"format_version\": 1", "\"format_version\": 3"),
               Catch::Contains("version is 3") && Catch::Contains("reads 1"));
    CHECK_THAT(with("\"format_version\": 1", "\"format_version\": \"1\""),
               Catch::Contains("version is \"1\""));
    CHECK_THAT(with("\"format_version\": 1,", ""),
               Catch::Contains("lacks the field 'format_version'"));
    CHECK_THAT(with("\"generation\"", "\"generations\""),
               Catch::Contains("unknown field 'generations'"));
    CHECK_THAT(with("\"group\"", "\"grope\""),
               Catch::Contains("tensor 0") && Catch::Contains("'grope'"));
    CHECK_THAT(with("\"generation\": 0", "\"generation\": -1"),
               Catch::Contains("'generation' is -1"));
    CHECK_THAT(with("\"group\": 1", "\"group\": 4294967296"),
               Catch::Contains("'group' is 4294967296"));
    CHECK_THAT(with("\"on\"", "\"maybe\""), Catch::Contains("maybe"));
    CHECK_THAT(with("\"run\": \"", "\"run\": \"zz"), Catch::Contains("no run identifier"));
    CHECK_THAT(with("\"embedding\"", "\"\""), Catch::Contains("empty name"));
    CHECK_THAT(with("50", "99999999999999999", "\"shape\""), Catch::Contains("'embedding'"));
    CHECK_THAT(with("50", "1e3", "\"shape\""), Catch::Contains("whole numbers"));
    CHECK_THAT(with("50", "18446744073709551616", "\"shape\""), Catch::Contains("whole numbers"));
    CHECK_THAT(with("\"settings\": {}", "\"settings\": 3"), Catch::Contains("'settings' is 3"));
    CHECK_THAT(with("spillway.extents/", "elsewhere/"), Catch::Contains("'extents'"));
    CHECK_THAT(with("\"extents\": \"/", "\"extents\": \"/x/../"), Catch::Contains("'extents'"));
    CHECK_THAT(with("\"extents\": \"/", "\"extents\": \"../"), Catch::Contains("'extents'"));
}

TEST_CASE("every truncation of a manifest is refused", "[manifest]") {
    const Places places;
    static_cast<void>(places.create(places.out));
    const auto path = places.out / "spillway.state" / "manifest.json";
    const auto text = file_text(path);
    for (std::size_t length = 0; length + 2 < text.size(); length += 3) {
        set_file_text(path, text.substr(0, length));
        CHECK_THAT(refusal_of_open(places.out), Catch::Contains(path.string()));
    }
    for (const std::string odd : {"[]", "3", "null", "\"x\"", "{}", "\x01"}) {
        set_file_text(path, odd);
        CHECK_THAT(refusal_of_open(places.out), Catch::Contains("cannot use"));
    }
    set_file_text(path, std::string(100000, '['));
    CHECK_THAT(refusal_of_open(places.out), Catch::Contains("JSON"));
}
