// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/manifest.h"

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
    CHECK_THAT(with("\"generation\": 0", "\"generation\": 7"),
               Catch::Contains("'generation' is 7, needed is a whole number from 0 to 0"));
    CHECK_THAT(with("\"format_version\": 1", "\"format_version\": 4"),
               Catch::Contains("version is 4") && Catch::Contains("reads 1 to 3"));
    CHECK_THAT(with("\"format_version\": 1", "\"format_version\": 3"),
               Catch::Contains("lacks the field 'region_tiles'"));
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

TEST_CASE("a manifest of each format is read as it was written", "[manifest]") {
    const std::filesystem::path state = "/out/spillway.state";
    Manifest manifest{.run = RunId::random(),
                      .tensors = sample_tensors(),
                      .planes = training_planes,
                      .extents_folder = state / "extents",
                      .more_extents = {},
                      .durability = "on",
                      .client_settings = "{}"};
    const auto place = [&](const char* drive) {
        return std::filesystem::path(drive) / "spillway.extents" / manifest.run.text();
    };
    const auto check = [&](const std::string& version) {
        const auto text = detail::manifest_text(manifest, state);
        CHECK_THAT(text, Catch::Contains("\"format_version\": " + version + ","));
        const auto read = detail::parse_manifest(text, state);
        CHECK(read.all_extents() == manifest.all_extents());
        CHECK(read.region_tiles == manifest.region_tiles);
        CHECK(read.generation == manifest.generation);
        CHECK(read.average == manifest.average);
        CHECK((text.find("\"kind\"") != std::string::npos) == manifest.average.has_value());
        CHECK(read.second_moments == manifest.second_moments);
        CHECK((text.find("\"factored\"") != std::string::npos) ==
              (manifest.second_moments == SecondMoments::factored));
        CHECK(read.first_file == manifest.first_file);
        CHECK(read.former_extents == manifest.former_extents);
        CHECK(detail::manifest_text(read, state) == text);
    };
    check("1");
    manifest.extents_folder = place("/a");
    check("1");
    manifest.more_extents = {place("/b")};
    manifest.region_tiles = 4;
    check("2");
    manifest.second_moments = SecondMoments::factored;
    check("2");
    manifest.planes.insert(Plane::average);
    manifest.average = AverageBasis{.kind = AverageKind::swa, .every = 100};
    check("2");
    manifest.generation = 2;
    manifest.first_file = 3;
    manifest.former_extents = {state / "extents", place("/c")};
    check("3");
    CHECK(manifest.extents_file(1) == place("/b") / "extents.4");
    manifest.more_extents.clear();
    CHECK_THROWS_WITH(detail::parse_manifest(detail::manifest_text(manifest, state), state),
                      Catch::Contains("'region_tiles' is 4"));
    manifest.region_tiles = 0;
    check("3");
    const auto refusal_with = [&](const std::string& from, const std::string& to) {
        auto text = detail::manifest_text(manifest, state);
        text.replace(text.find(from), from.size(), to);
        try {
            static_cast<void>(detail::parse_manifest(text, state));
        } catch (const FolderRefused& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK_THAT(refusal_with("\"factored\"", "\"whole\""),
               Catch::Contains("'second_moments' is \"whole\", needed is \"factored\""));
    CHECK_THAT(refusal_with("\"swa\"", "\"mean\""), Catch::Contains("'kind' is \"mean\""));
    CHECK_THAT(refusal_with("\"every\": 100", "\"every\": 0"),
               Catch::Contains("'every' is 0, needed is at least 1"));
    manifest.planes.erase(Plane::average);
    CHECK_THROWS_WITH(detail::parse_manifest(detail::manifest_text(manifest, state), state),
                      Catch::Contains("no plane of that name"));
    manifest.average.reset();
    manifest.former_extents = {"/home/somebody"};
    CHECK_THROWS_AS(detail::parse_manifest(detail::manifest_text(manifest, state), state),
                    FolderRefused);
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
