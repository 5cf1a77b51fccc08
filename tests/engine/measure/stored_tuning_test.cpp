// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/stored_tuning.h"

#include <fstream>
#include <string>
#include <system_error>

#include <catch2/catch.hpp>

#include "engine/measure/profile.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;

StoredTuning example(const std::string& state) {
    return {.key = {.cpu = "a processor",
                    .isa = "avx2",
                    .threads = 8,
                    .device = "cpu",
                    .file_system = "ef53:1234",
                    .drive_io = "auto, 4194304 bytes at depth 32",
                    .optimizer = "adamw",
                    .state = state,
                    .host_bytes = std::size_t{1} << 30},
            .measured_unix_s = 100,
            .values = {.chunk_bytes = std::uint64_t{8} << 20,
                       .update_window = 6,
                       .weight_window = 5,
                       .io_block_bytes = std::uint64_t{1} << 20,
                       .io_depth = 16,
                       .update_threads = 3},
            .gain = 1.25};
}

}  // namespace

TEST_CASE("stored tuning: what is stored is found by its whole key, one of each") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    auto newer = example("fp32");
    newer.values = {};
    newer.gain = 1;
    const DriveSettings drive{"ef53:1", 10, "io_uring", 4 << 20, 32, {2e9, 3e9, 4e9}};
    store_drive_settings(path, drive);
    store_tuning(path, example("fp32"));
    store_tuning(path, example("int8"));
    store_tuning(path, newer);
    MachineProfile profile;
    profile.key.cpu = "a processor";
    store_profile(path, profile);
    const auto loaded = load_profiles(path);
    CHECK(loaded.note.empty());
    CHECK(loaded.drives == std::vector{drive});
    CHECK(loaded.profiles.size() == 1);
    REQUIRE(loaded.tunings.size() == 2);
    REQUIRE(find_tuning(loaded.tunings, newer.key) != nullptr);
    CHECK(*find_tuning(loaded.tunings, newer.key) == newer);
    CHECK(*find_tuning(loaded.tunings, example("int8").key) == example("int8"));
    const auto missed = [&](auto change) {
        auto key = newer.key;
        change(key);
        return find_tuning(loaded.tunings, key) == nullptr;
    };
    CHECK(missed([](TuningKey& key) { key.cpu = "another"; }));
    CHECK(missed([](TuningKey& key) { key.isa = "avx512"; }));
    CHECK(missed([](TuningKey& key) { key.threads = 7; }));
    CHECK(missed([](TuningKey& key) { key.device = "sim:1GiB"; }));
    CHECK(missed([](TuningKey& key) { key.file_system = "ef53:1"; }));
    CHECK(missed([](TuningKey& key) { key.drive_io = "auto, 4096 bytes at depth 1"; }));
    CHECK(missed([](TuningKey& key) { key.optimizer = "lion"; }));
    CHECK(missed([](TuningKey& key) { key.state = "bf16"; }));
    CHECK(missed([](TuningKey& key) { key.host_bytes *= 2; }));
}

TEST_CASE("stored tuning: values that no search gives are left out, the others stay") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    auto bad = example("bf16");
    const int kind = GENERATE(range(0, 8));
    CAPTURE(kind);
    if (kind == 0)
        bad.values.chunk_bytes = 100000;
    else if (kind == 1)
        bad.values.chunk_bytes = std::uint64_t{1} << 40;
    else if (kind == 2)
        bad.values.update_window = 65;
    else if (kind == 3)
        bad.values.weight_window = 1000;
    else if (kind == 4)
        bad.values.io_block_bytes = 5000;
    else if (kind == 5)
        bad.values.io_depth = 5000;
    else if (kind == 6)
        bad.values.update_threads = 9;
    else
        bad.gain = 0.5;
    store_tuning(path, bad);
    store_tuning(path, example("fp32"));
    const auto loaded = load_profiles(path);
    // The second store has read the file, and written what it took from it.
    REQUIRE(loaded.tunings.size() == 1);
    CHECK(loaded.tunings[0] == example("fp32"));
    store_tuning(path, bad);
    CHECK_THAT(load_profiles(path).note, Contains("a tuning was ignored"));
    CHECK(load_profiles(path).tunings.size() == 1);
    CHECK(load_profiles(path).file == ProfileFile::ours);
}

TEST_CASE("stored tuning: a file cut in the middle is ignored, one that is not ours stays") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    store_tuning(path, example("fp32"));
    std::ifstream file(path);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    text.replace(text.find("\"io_depth\""), 10, "\"io_dept\"");
    std::ofstream(path, std::ios::trunc) << text;
    CHECK(load_profiles(path).tunings.empty());
    CHECK(load_profiles(path).file == ProfileFile::damaged);
    CHECK_THAT(load_profiles(path).note, Contains("ignored"));
    store_tuning(path, example("int8"));
    CHECK(load_profiles(path).tunings.size() == 1);
    const auto foreign = folder.path() / "thesis.json";
    std::ofstream(foreign) << "{}";
    CHECK_THROWS_AS(store_tuning(foreign, example("fp32")), std::system_error);
}

}  // namespace spillway::engine
