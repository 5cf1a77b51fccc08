// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/profile.h"

#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include <catch2/catch.hpp>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;

MachineProfile example(const std::string& device, std::int64_t measured_unix_s) {
    MachineProfile profile;
    profile.key = {"a processor", "avx2", 2, device, "ef53:1234", "io_uring, 4096 bytes at depth 8",
                   1 << 20};
    profile.measured_unix_s = measured_unix_s;
    profile.drive = DriveRates{3e9, 1.5e9, 2e9};
    profile.dram_bytes_per_s = 1.25e10;
    profile.to_device_bytes_per_s = 8e9;
    profile.notes = {"a note"};
    return profile;
}

/// Sets a variable of the environment for a while.
class Variable {
  public:
    Variable(const char* name, const char* value) : name_(name) {
        if (const char* former = ::getenv(name))
            former_ = former;
        set(value);
    }
    ~Variable() { set(former_ ? former_->c_str() : nullptr); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

  private:
    void set(const char* value) {
        if (value == nullptr)
            ::unsetenv(name_);
        else
            ::setenv(name_, value, 1);
    }
    const char* name_;
    std::optional<std::string> former_;
};

}  // namespace

TEST_CASE("profile: what is stored is loaded, one of each key") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "a" / "b" / "profile.json";
    CHECK(load_profiles(path).profiles.empty());
    CHECK(load_profiles(path).note.empty());
    auto without_drive = example("sim:64MiB", 50);
    without_drive.drive.reset();
    store_profile(path, example("cpu", 100));
    store_profile(path, without_drive);
    store_profile(path, example("cpu", 200));
    const auto loaded = load_profiles(path);
    CHECK(loaded.note.empty());
    REQUIRE(loaded.profiles.size() == 2);
    CHECK(loaded.profiles[0] == without_drive);
    CHECK(loaded.profiles[1] == example("cpu", 200));
}

TEST_CASE("profile: a drive's settings stand beside the profiles, one of each file system") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    const DriveSettings first{"ef53:1", 10, "io_uring", 4 << 20, 32, {2e9, 3e9, 4e9}};
    DriveSettings second = first;
    second.file_system = "ef53:2";
    DriveSettings newer = first;
    newer.backend = "threads";
    newer.depth = 8;
    store_drive_settings(path, first);
    CHECK_NOTHROW(check_profile_path(path));
    store_profile(path, example("cpu", 100));
    store_drive_settings(path, second);
    store_drive_settings(path, newer);
    const auto loaded = load_profiles(path);
    CHECK(loaded.note.empty());
    REQUIRE(loaded.profiles.size() == 1);
    CHECK(loaded.profiles[0] == example("cpu", 100));
    REQUIRE(loaded.drives.size() == 2);
    REQUIRE(find_drive_settings(loaded.drives, "ef53:1") != nullptr);
    CHECK(*find_drive_settings(loaded.drives, "ef53:1") == newer);
    CHECK(*find_drive_settings(loaded.drives, "ef53:2") == second);
    CHECK(find_drive_settings(loaded.drives, "ef53:3") == nullptr);
    store_profile(path, example("cpu", 200));
    CHECK(load_profiles(path).drives == loaded.drives);
}

TEST_CASE("profile: settings that no drive can have are left out, the others stay") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    DriveSettings good{"ef53:1", 10, "io_uring", 4 << 20, 32, {2e9, 3e9, 4e9}};
    DriveSettings bad = good;
    bad.file_system = "ef53:2";
    const int kind = GENERATE(range(0, 6));
    if (kind == 0)
        bad.backend = "auto";
    else if (kind == 1)
        bad.backend = "dma";
    else if (kind == 2)
        bad.operation_bytes = 5000;
    else if (kind == 3)
        bad.depth = 0;
    else if (kind == 4)
        bad.depth = 100000;
    else
        bad.rates.read_bytes_per_s = 1e20;
    store_drive_settings(path, bad);
    store_drive_settings(path, good);
    const auto loaded = load_profiles(path);
    REQUIRE(loaded.drives.size() == 1);
    CHECK(loaded.drives[0] == good);
    store_profile(path, example("cpu", 1));
    CHECK(load_profiles(path).note.empty());
}

TEST_CASE("profile: only a recent one of the same machine is found") {
    std::vector<MachineProfile> profiles{example("cpu", 100), example("cpu", 150),
                                         example("sim:64MiB", 190)};
    const auto key = example("cpu", 0).key;
    REQUIRE(find_profile(profiles, key, 200, 60) != nullptr);
    CHECK(find_profile(profiles, key, 200, 60)->measured_unix_s == 150);
    CHECK(find_profile(profiles, key, 200, 49) == nullptr);
    CHECK(find_profile(profiles, key, 99, 1000) == nullptr);  // made in the future
    auto other = key;
    other.threads = 3;
    CHECK(find_profile(profiles, other, 200, 1000) == nullptr);
    other = key;
    other.file_system = "";
    CHECK(find_profile(profiles, other, 200, 1000) == nullptr);
    profiles[0].measured_unix_s = std::numeric_limits<std::int64_t>::min();
    CHECK(find_profile(std::span(profiles).first(1), key, 200, 1000) == nullptr);
}

TEST_CASE("profile: a damaged or outdated file of ours is ignored with a note and replaced") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    store_profile(path, example("cpu", 100));
    std::ifstream file(path);
    const std::string valid{std::istreambuf_iterator<char>(file), {}};
    const auto with = [&](const std::string& from, const std::string& to) {
        auto text = valid;
        text.replace(text.find(from), from.size(), to);
        return text;
    };
    for (const auto& text :
         {valid.substr(0, valid.size() / 2), with("\"format\": 1", "\"format\": 2"),
          with("8000000000.0", "-1.0"), with("8000000000.0", "999.0"), with("8000000000.0", "1e15"),
          with("8000000000.0", "1e400"), with("8000000000.0", "\"fast\""),
          with("\"threads\"", "\"thread\"")}) {
        INFO(text);
        std::ofstream(path, std::ios::trunc) << text;
        CHECK(load_profiles(path).profiles.empty());
        CHECK_THAT(load_profiles(path).note, Contains(path.string()) && Contains("ignored"));
        store_profile(path, example("cpu", 300));
        CHECK(load_profiles(path).profiles.size() == 1);
    }
    CHECK_THROWS_AS(store_profile(path / "below a file" / "p.json", example("cpu", 1)),
                    std::system_error);
}

TEST_CASE("profile: rates that cannot be true leave the other profiles") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    auto wrong = example("cpu", 100);
    wrong.drive->write_bytes_per_s = 1000;
    store_profile(path, wrong);
    store_profile(path, example("sim:64MiB", 100));
    const auto loaded = load_profiles(path);
    REQUIRE(loaded.profiles.size() == 1);
    CHECK(loaded.profiles[0] == example("sim:64MiB", 100));
    CHECK(loaded.file == ProfileFile::ours);
    check_profile_path(path);
}

TEST_CASE("profile: what is not ours is never replaced") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "thesis.json";
    const auto read = [&] {
        std::ifstream file(path);
        return std::string{std::istreambuf_iterator<char>(file), {}};
    };
    for (const std::string text :
         {"", "no JSON", "[]", "{}", "{\"format\": 1}", "{\n  \"format\": 1,\n  \"data\": ["}) {
        INFO(text);
        std::ofstream(path, std::ios::trunc) << text;
        CHECK(load_profiles(path).file == ProfileFile::foreign);
        CHECK_THROWS_WITH(store_profile(path, example("cpu", 1)), Contains(path.string()));
        CHECK_THROWS_WITH(check_profile_path(path), Contains("is no profile of this program"));
        CHECK(read() == text);
    }
    const auto fifo = folder.path() / "fifo";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    const std::filesystem::path device = "/dev/zero";
    for (const auto& other : {folder.path(), fifo, device}) {
        CHECK(load_profiles(other).file == ProfileFile::foreign);
        CHECK_THROWS_AS(store_profile(other, example("cpu", 1)), std::system_error);
        CHECK_THROWS_WITH(check_profile_path(other), Contains("is a "));
    }
    CHECK(std::filesystem::is_character_file(device));
}

TEST_CASE("profile: a path of the user's is ours, or free in a folder that is there") {
    const testing::TemporaryFolder folder;
    const auto path = folder.path() / "profile.json";
    check_profile_path(path);
    store_profile(path, example("cpu", 100));
    check_profile_path(path);
    std::filesystem::resize_file(path, 200);
    CHECK(load_profiles(path).file == ProfileFile::damaged);
    CHECK_THROWS_WITH(check_profile_path(path), Contains("is no profile of this program"));
    CHECK_THROWS_WITH(check_profile_path(folder.path() / "no" / "p.json"), Contains("not there"));
    CHECK_FALSE(std::filesystem::exists(folder.path() / "no"));
    const auto link = folder.path() / "link";
    std::filesystem::create_symlink(path, link);
    store_profile(link, example("cpu", 200));
    CHECK(std::filesystem::is_symlink(link));
    CHECK(load_profiles(path).profiles.size() == 1);
}

TEST_CASE("profile: the default place follows the environment") {
    {
        const Variable cache("XDG_CACHE_HOME", "/some/cache");
        CHECK(default_profile_path() == "/some/cache/spillway/profile.json");
    }
    const Variable relative("XDG_CACHE_HOME", "relative");  // to be ignored, says the standard
    {
        const Variable home("HOME", "/home/someone");
        CHECK(default_profile_path() == "/home/someone/.cache/spillway/profile.json");
    }
    const Variable home("HOME", nullptr);
    CHECK(default_profile_path().empty());
}

TEST_CASE("profile: the machine's own names") {
    const testing::TemporaryFolder folder;
    CHECK_FALSE(cpu_model_name().empty());
    CHECK(file_system_identity(folder.path()) == file_system_identity(folder.path() / "."));
    CHECK(file_system_identity(folder.path()) != file_system_identity("/proc"));
    CHECK_THROWS_WITH(file_system_identity(folder.path() / "absent"), Contains("absent"));
}

}  // namespace spillway::engine
