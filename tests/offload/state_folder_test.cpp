// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/state_folder.h"

#include <fstream>

#include <catch2/catch.hpp>
#include <sys/stat.h>

#include "tests/offload/as_nobody.h"
#include "tests/offload/sample_folders.h"
#include "tests/support/skip.h"

using namespace spillway::offload;
using namespace spillway::testing;

namespace {

namespace fs = std::filesystem;

/// Files and folders below `root`, to see that nothing was written.
std::size_t entries(const fs::path& root) {
    const fs::recursive_directory_iterator all(root);
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::string refusal_of_create(const fs::path& out, const fs::path& nvme) {
    try {
        StateFolder::create(out, nvme, sample_tensors(), "on", "{}");
    } catch (const FolderRefused& error) {
        return error.what();
    }
    return {};
}

class WorkingFolder {
  public:
    explicit WorkingFolder(const fs::path& folder) : former_(fs::current_path()) {
        fs::current_path(folder);
    }
    ~WorkingFolder() { fs::current_path(former_); }
    WorkingFolder(const WorkingFolder&) = delete;
    WorkingFolder& operator=(const WorkingFolder&) = delete;

  private:
    fs::path former_;
};

}  // namespace

TEST_CASE("a created run is opened with what it was created with", "[state_folder]") {
    const Places places;
    const std::string settings =
        R"({"seed":18446744073709551615,"a":{"lr":0.0001},"b":[true,null]})";
    RunId run;
    {
        CHECK_FALSE(StateFolder::holds_run(places.out));
        const auto folder =
            StateFolder::create(places.out, places.nvme, sample_tensors(), "off", settings);
        run = folder.manifest().run;
        CHECK(folder.folder() == places.out / "spillway.state");
        CHECK(folder.extents_folder() ==
              fs::canonical(places.nvme) / "spillway.extents" / run.text());
        CHECK(folder.extents_file() == folder.extents_folder() / "extents.0");
        CHECK(StateFolder::holds_run(places.out));
        CHECK_FALSE(fs::exists(folder.folder() / "manifest.json.tmp"));
    }
    const auto folder = StateFolder::open(places.out, LockMode::exclusive);
    const auto& manifest = folder.manifest();
    CHECK(manifest.run == run);
    CHECK(manifest.durability == "off");
    CHECK(manifest.generation == 0);
    CHECK(manifest.client_settings == settings);
    REQUIRE(manifest.tensors.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(manifest.tensors[i].name == sample_tensors()[i].name);
        CHECK(manifest.tensors[i].shape == sample_tensors()[i].shape);
        CHECK(manifest.tensors[i].group == sample_tensors()[i].group);
        CHECK(manifest.tensors[i].contributions == sample_tensors()[i].contributions);
    }
}

TEST_CASE("without a drive the extents lie in the state folder and move with it",
          "[state_folder]") {
    const Places places;
    {
        const auto folder = StateFolder::create(places.out, {}, sample_tensors(), "on", "{}");
        CHECK(folder.extents_folder() == places.out / "spillway.state" / "extents");
    }
    fs::rename(places.out, places.root / "moved");
    const auto folder = StateFolder::open(places.root / "moved", LockMode::exclusive);
    CHECK(folder.extents_folder() == places.root / "moved" / "spillway.state" / "extents");
}

TEST_CASE("a folder in use is refused to a second object and a second process, naming the pid",
          "[state_folder]") {
    const Places places;
    const auto folder = places.create(places.out);
    const auto pid = "process " + std::to_string(::getpid()) + ";";
    CHECK_THAT(refusal_of_open(places.out),
               Catch::Contains(pid) && Catch::Contains(folder.folder().string()));
    CHECK_THAT(refusal_of_open(places.out, LockMode::shared_read), Catch::Contains(pid));
    CHECK(in_child([&] {
              return refusal_of_open(places.out).find(pid) != std::string::npos ? 0 : 1;
          }) == 0);
    CHECK_THROWS_AS(StateFolder::start_over(places.out, places.nvme), FolderRefused);
}

TEST_CASE("readers share a folder and keep a writer out", "[state_folder]") {
    const Places places;
    static_cast<void>(places.create(places.out));
    {
        const auto one = StateFolder::open(places.out, LockMode::shared_read);
        auto two = StateFolder::open(places.out, LockMode::shared_read);
        CHECK_THAT(refusal_of_open(places.out), Catch::Contains("being read"));
        CHECK_THROWS_AS(two.note_commit(1), std::logic_error);
    }
    CHECK(refusal_of_open(places.out).empty());
}

TEST_CASE("a run is read without write access", "[state_folder]") {
    const Places places;
    const auto run = places.committed_run(places.out);
    for (const auto& entry : fs::recursive_directory_iterator(places.root))
        fs::permissions(entry.path(), entry.is_directory() ? fs::perms{0555} : fs::perms{0444});
    fs::permissions(places.root, fs::perms{0555});
    {
        const AsNobody nobody;
        if (nobody.can_read(places.out)) {
            CHECK(StateFolder::open(places.out, LockMode::shared_read).manifest().run == run);
            CHECK_THROWS_WITH(StateFolder::open(places.out, LockMode::exclusive),
                              Catch::Contains("Permission denied"));
        } else {
            skip("an ordinary user cannot reach " + places.out.string());
        }
    }
    fs::permissions(places.root, fs::perms{0755});
    for (const auto& entry : fs::recursive_directory_iterator(places.root))
        fs::permissions(entry.path(), fs::perms{0755});
}

TEST_CASE("a child forked from a run neither keeps nor releases its lock", "[state_folder]") {
    const Places places;
    int pipe_ends[2] = {};
    REQUIRE(::pipe(pipe_ends) == 0);
    pid_t child = -1;
    {
        auto folder = std::make_unique<StateFolder>(places.create(places.out));
        child = ::fork();
        if (child == 0) {
            folder.reset();
            char byte = 0;
            ::_exit(::read(pipe_ends[0], &byte, 1) == 1 ? 0 : 1);
        }
        CHECK(in_child([&] {
                  folder.reset();
                  return 0;
              }) == 0);
        CHECK_THAT(refusal_of_open(places.out), Catch::Contains("in use"));
    }
    CHECK(refusal_of_open(places.out).empty());  // although the first child lives on
    CHECK(::write(pipe_ends[1], "x", 1) == 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
}

TEST_CASE("a killed process leaves no lock behind", "[state_folder]") {
    const Places places;
    CHECK(in_child([&] {
              const auto folder = places.create(places.out);
              ::raise(SIGKILL);
              return 0;
          }) == -SIGKILL);
    CHECK(refusal_of_open(places.out).empty());
}

TEST_CASE("an output folder that is not empty is refused and left alone", "[state_folder]") {
    const Places places;
    fs::create_directory(places.out);
    set_file_text(places.out / "thesis.tex", "x");
    const auto before = entries(places.root);
    CHECK_THAT(refusal_of_create(places.out, places.nvme), Catch::Contains(places.out.string()) &&
                                                               Catch::Contains("thesis.tex") &&
                                                               Catch::Contains("--resume"));
    CHECK(entries(places.root) == before);
    fs::remove(places.out / "thesis.tex");
    CHECK(refusal_of_create(places.out, places.nvme).empty());
    CHECK_THAT(refusal_of_create(places.out, places.nvme), Catch::Contains("spillway.state"));
}

TEST_CASE("an unusable output folder is refused before anything is written", "[state_folder]") {
    const Places places;
    set_file_text(places.root / "file", "x");
    const auto before = entries(places.root);
    CHECK_THAT(refusal_of_create(places.root / "file", places.nvme), Catch::Contains("is a file"));
    CHECK_THAT(refusal_of_create(places.root / "file" / "out", places.nvme),
               Catch::Contains("file"));
    CHECK_THAT(refusal_of_create("/dev/null", places.nvme), Catch::Contains("device node"));
    CHECK_THAT(refusal_of_create("", places.nvme), Catch::Contains("empty path"));
    fs::permissions(places.root, fs::perms{0555});
    {
        const AsNobody nobody;
        CHECK_THAT(refusal_of_create(places.root / "deep" / "out", {}),
                   Catch::Contains(places.root.string()) && Catch::Contains("Permission denied"));
    }
    fs::permissions(places.root, fs::perms{0755});
    CHECK(entries(places.root) == before);
}

TEST_CASE("an unusable drive folder is refused by name before anything is written",
          "[state_folder]") {
    const Places places;
    set_file_text(places.root / "file", "x");
    fs::create_symlink("nowhere", places.root / "dangling");
    fs::create_directory(places.root / "locked");
    fs::permissions(places.root / "locked", fs::perms{0555});
    REQUIRE(::mkfifo((places.root / "pipe").c_str(), 0644) == 0);
    const auto before = entries(places.root);
    const auto refusal = [&](const fs::path& nvme) { return refusal_of_create(places.out, nvme); };
    CHECK_THAT(refusal(places.root / "missing"),
               Catch::Contains("does not exist") && Catch::Contains("--nvme"));
    CHECK_THAT(refusal(places.root / "dangling"), Catch::Contains("does not exist"));
    CHECK_THAT(refusal(places.root / "file"), Catch::Contains("is a file"));
    CHECK_THAT(refusal("/dev/null"), Catch::Contains("/dev/null is a device node"));
    CHECK_THAT(refusal(places.root / "pipe"), Catch::Contains("is a pipe"));
    fs::permissions(places.root, fs::perms{0777});
    {
        const AsNobody nobody;
        CHECK_THAT(refusal(places.root / "locked"),
                   Catch::Contains("cannot be written") && Catch::Contains("locked"));
    }
    fs::permissions(places.root, fs::perms{0755});
    CHECK(entries(places.root) == before);
}

TEST_CASE("relative folders and links are noted as the absolute places they are",
          "[state_folder]") {
    const Places places;
    fs::create_directory_symlink("nvme", places.root / "link");
    const WorkingFolder working_folder(places.root);
    {
        const auto folder =
            StateFolder::create("./x/../out/", "link", sample_tensors(), "on", "{}");
        CHECK(folder.folder() == places.out / "spillway.state");
        CHECK(folder.extents_folder().parent_path() ==
              fs::canonical(places.nvme) / "spillway.extents");
    }
    fs::current_path("/");
    CHECK(StateFolder::open(places.out, LockMode::exclusive).extents_folder().is_absolute());
}

TEST_CASE("what could not be read back is refused at creation", "[state_folder]") {
    const Places places;
    const auto create = [&](std::vector<TensorSpec> tensors, const std::string& durability,
                            const std::string& settings) {
        StateFolder::create(places.out, places.nvme, std::move(tensors), durability, settings);
    };
    CHECK_THROWS_WITH(create(sample_tensors(), "maybe", "{}"), Catch::Contains("'maybe'"));
    CHECK_THROWS_WITH(create(sample_tensors(), "on", "[1]"), Catch::Contains("[1]"));
    CHECK_THROWS_WITH(create(sample_tensors(), "on", "{\"a\":"), Catch::Contains("JSON"));
    CHECK_THROWS_WITH(create({}, "on", "{}"), Catch::Contains("at least one tensor"));
    CHECK_THROWS_WITH(create({{.name = "\xff", .shape = {1}}}, "on", "{}"),
                      Catch::Contains("UTF-8"));
    CHECK_FALSE(fs::exists(places.out));
    CHECK(fs::is_empty(places.nvme));
}

TEST_CASE("a failure while creating leaves no files behind", "[state_folder]") {
    const Places places;
    set_file_text(places.nvme / "spillway.extents", "in the way");
    CHECK_THROWS_WITH(places.create(places.out), Catch::Contains("spillway.extents"));
    CHECK(fs::is_empty(places.out));
    CHECK(file_text(places.nvme / "spillway.extents") == "in the way");
    fs::remove(places.nvme / "spillway.extents");
    CHECK(refusal_of_create(places.out, places.nvme).empty());
}

TEST_CASE("a folder without a run is refused by name", "[state_folder]") {
    const Places places;
    CHECK_THAT(refusal_of_open(places.out), Catch::Contains("holds no run"));
    fs::create_directories(places.out / "spillway.state");
    CHECK_THAT(refusal_of_open(places.out), Catch::Contains("manifest.json"));
    CHECK_FALSE(StateFolder::holds_run(places.out));
}

TEST_CASE("missing or strange extents are refused by name", "[state_folder]") {
    const Places places;
    const auto run = places.committed_run(places.out);
    const auto extents = places.extents_of(run);
    CHECK(refusal_of_open(places.out).empty());

    fs::rename(extents / "extents.0", places.root / "kept");
    CHECK_THAT(refusal_of_open(places.out),
               Catch::Contains("extents.0 is missing") && Catch::Contains(run.text()));
    fs::rename(places.root / "kept", extents / "extents.0");

    const auto note = file_text(extents / "lock");
    auto other = note;
    const auto other_run = RunId::random().text();
    other.replace(other.find(run.text()), 36, other_run);
    set_file_text(extents / "lock", other);
    CHECK_THAT(refusal_of_open(places.out),
               Catch::Contains("belong to run " + other_run) && Catch::Contains(run.text()));
    for (std::size_t length = 0; length < note.size(); length += 7) {
        set_file_text(extents / "lock", note.substr(0, length));
        CHECK_THAT(refusal_of_open(places.out),
                   Catch::Contains("damaged") || Catch::Contains("old copy"));
    }
    set_file_text(extents / "lock", note);
    CHECK(refusal_of_open(places.out).empty());

    fs::remove_all(extents);
    CHECK_THAT(refusal_of_open(places.out), Catch::Contains("missing") &&
                                                Catch::Contains(extents.string()) &&
                                                Catch::Contains("mount or restore"));
}

TEST_CASE("a copy of OUT cannot run on the same extents at the same time", "[state_folder]") {
    const Places places;
    places.committed_run(places.out);
    fs::copy(places.out, places.root / "copy", fs::copy_options::recursive);
    const auto folder = StateFolder::open(places.out, LockMode::exclusive);
    CHECK_THAT(refusal_of_open(places.root / "copy"),
               Catch::Contains("spillway.extents") && Catch::Contains(std::to_string(::getpid())));
}

TEST_CASE("an old copy of OUT is told from corruption", "[state_folder]") {
    const Places places;
    places.committed_run(places.out);
    fs::copy(places.out, places.root / "copy", fs::copy_options::recursive);
    {
        auto folder = StateFolder::open(places.out, LockMode::exclusive);
        folder.check_commit(1);
        folder.check_commit(2);  // a kill between a commit and its note
        folder.note_commit(2);
        folder.check_commit(2);
    }
    for (const auto mode : {LockMode::exclusive, LockMode::shared_read}) {
        const auto copy = StateFolder::open(places.root / "copy", mode);
        CHECK_THROWS_AS(copy.check_commit(1), FolderRefused);
        CHECK_THROWS_WITH(copy.check_commit(1), Catch::Contains("old copy") &&
                                                    Catch::Contains("number 2") &&
                                                    Catch::Contains(places.out.string() + ")"));
    }
    const auto folder = StateFolder::open(places.out, LockMode::exclusive);
    folder.check_commit(2);
    // The same distance, but the log has seen why: the newer commit is damaged, not elsewhere.
    CHECK_THROWS_AS(folder.check_commit(1, "record.1 does not count"), IntegrityError);
    CHECK_THROWS_WITH(folder.check_commit(1, "record.1 does not count"),
                      Catch::Contains("record.1 does not count") && Catch::Contains("number 2") &&
                          !Catch::Contains("old copy"));
    folder.check_commit(2, "record.1 does not count");
}

TEST_CASE("noting a commit changes one sector of the lock file and nothing else",
          "[state_folder]") {
    const Places places;
    auto folder = places.create(places.root / std::string(200, 'a') / std::string(200, 'b') /
                                std::string(200, 'c'));
    const auto lock = folder.extents_folder() / "lock";
    const auto before = file_text(lock);
    folder.note_commit(18446744073709551615U);
    const auto after = file_text(lock);
    REQUIRE(before.size() == after.size());
    REQUIRE(after.size() > 512);
    CHECK(after.substr(512) == before.substr(512));
    CHECK_THROWS_WITH(folder.check_commit(5), Catch::Contains("18446744073709551615"));
}

TEST_CASE("several runs share a drive folder", "[state_folder]") {
    const Places places;
    const auto one = places.create(places.root / "one");
    const auto two = places.create(places.root / "two");
    CHECK(one.extents_folder() != two.extents_folder());
    CHECK(one.extents_folder().parent_path() == two.extents_folder().parent_path());
}
