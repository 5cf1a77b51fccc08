// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <catch2/catch.hpp>

#include "tests/offload/sample_folders.h"

using namespace spillway::offload;
using namespace spillway::testing;

namespace {

namespace fs = std::filesystem;

void clean(const fs::path& folder) {
    remove_leftovers(find_leftovers(folder));
}

}  // namespace

TEST_CASE("nothing of a living or resumable run is a leftover", "[leftovers]") {
    const Places places;
    const auto run = places.committed_run(places.out);
    const auto living = places.create(places.root / "living");  // has not committed, but is in use
    for (const auto& folder : {places.out, places.root / "living", places.nvme})
        CHECK(find_leftovers(folder).empty());
    CHECK(fs::exists(places.extents_of(run)));
    CHECK(find_leftovers(places.root).empty());
    CHECK_THROWS_AS(find_leftovers(places.root / "missing"), FolderRefused);
}

TEST_CASE("extents whose OUT is gone are listed with their bytes and removed", "[leftovers]") {
    const Places places;
    const auto kept = places.committed_run(places.root / "kept");
    const auto run = places.committed_run(places.out);
    fs::remove_all(places.out);
    const auto found = find_leftovers(places.nvme);
    REQUIRE(found.size() == 1);
    CHECK(found[0].path == places.extents_of(run));
    CHECK(found[0].bytes >= 65536);
    CHECK(found[0].bytes < 65536 + 65536);
    CHECK_THAT(found[0].reason,
               Catch::Contains(places.out.string() + " is gone") && Catch::Contains("number 1"));
    remove_leftovers(found);
    CHECK_FALSE(fs::exists(places.extents_of(run)));
    CHECK(fs::exists(places.extents_of(kept) / "extents.0"));
    CHECK(find_leftovers(places.nvme).empty());
    remove_leftovers(found);  // already gone
}

TEST_CASE("extents whose OUT belongs to another run now are leftovers", "[leftovers]") {
    const Places places;
    const auto first = places.committed_run(places.out);
    fs::remove_all(places.out);
    const auto second = places.committed_run(places.out);
    const auto found = find_leftovers(places.nvme);
    REQUIRE(found.size() == 1);
    CHECK(found[0].path == places.extents_of(first));
    CHECK_THAT(found[0].reason, Catch::Contains("another run"));
    remove_leftovers(found);
    CHECK(fs::exists(places.extents_of(second)));
}

TEST_CASE("a run that never committed is a leftover of its OUT and of its drive", "[leftovers]") {
    const Places places;
    const auto extents = places.create(places.out).extents_folder();
    const auto found = find_leftovers(places.out);
    REQUIRE(found.size() == 2);
    CHECK(found[0].path == places.out / "spillway.state");
    CHECK(found[1].path == extents);
    CHECK_THAT(found[0].reason, Catch::Contains("never committed"));
    CHECK(find_leftovers(places.nvme).size() == 1);
    remove_leftovers(found);
    CHECK(fs::is_empty(places.out));
    CHECK_FALSE(fs::exists(extents));
}

TEST_CASE("extents inside OUT are counted and removed with it", "[leftovers]") {
    const Places places;
    {
        const auto folder = StateFolder::create(places.out, {}, sample_tensors(), "on", "{}");
        set_file_text(folder.extents_file(), std::string(65536, 'x'));
    }
    const auto found = find_leftovers(places.out);
    REQUIRE(found.size() == 1);
    CHECK(found[0].bytes >= 65536);
    remove_leftovers(found);
    CHECK(fs::is_empty(places.out));
}

TEST_CASE("the name of a file that should have none is found wherever one may be made",
          "[leftovers]") {
    const Places places;
    const auto run = places.committed_run(places.out);
    const auto name = [] { return "spillway.scratch." + RunId::random().text(); };
    const auto living = places.create(places.root / "living");
    fs::create_directory(places.out / "spillway.state" / "extents");
    const std::vector<fs::path> left{
        places.nvme / name(), places.extents_of(run) / name(), living.extents_folder() / name(),
        places.out / "spillway.state" / "extents" / name(), places.out / name()};
    const std::vector<fs::path> kept{places.nvme / name(), places.nvme / "spillway.scratch.mine"};
    for (const auto& path : left)
        set_file_text(path, "");
    set_file_text(kept[0], "x");
    set_file_text(kept[1], "");
    CHECK(find_leftovers(places.nvme).size() == 3);
    CHECK(find_leftovers(places.out).size() == 3);  // of them the folder, which no layout names
    fs::remove(left[0]);                            // listed, and gone by itself
    clean(places.nvme);
    clean(places.out);
    for (const auto& path : left)
        CHECK_FALSE(fs::exists(path));
    for (const auto& path : kept)
        CHECK(fs::exists(path));
    CHECK(fs::exists(places.extents_of(run) / "extents.0"));
    CHECK_THROWS_AS(remove_leftovers({{kept[0], 0, ""}}), FolderRefused);
}

TEST_CASE("a dead run's folder goes with all that was made in it", "[leftovers]") {
    const Places places;
    const auto extents = places.extents_of(places.committed_run(places.out));
    fs::remove_all(places.out);
    set_file_text(extents / "gradients.0", "x");
    set_file_text(extents / ("spillway.scratch." + RunId::random().text()), "");
    clean(places.nvme);
    CHECK_FALSE(fs::exists(extents));
}

TEST_CASE("foreign files are never removed", "[leftovers]") {
    const Places places;
    const auto extents = places.create(places.out).extents_folder();
    const auto state = places.out / "spillway.state";
    set_file_text(places.root / "precious", "x");
    set_file_text(extents / "notes.txt", "x");
    set_file_text(extents / "extents.old", "x");
    set_file_text(state / "notes.txt", "x");
    fs::create_symlink(places.root / "precious", state / "table.0");
    fs::create_directory(state / "table.1");
    fs::create_directory(extents.parent_path() / "photos");
    set_file_text(extents.parent_path() / "photos" / "lock", "x");
    fs::create_directory_symlink(places.root, extents.parent_path() / RunId::random().text());
    clean(places.out);
    clean(places.nvme);
    for (const auto& path :
         {places.root / "precious", extents / "notes.txt", extents / "extents.old",
          state / "notes.txt", state / "table.1", extents.parent_path() / "photos" / "lock"})
        CHECK(fs::exists(path));
    CHECK(fs::is_symlink(state / "table.0"));
    CHECK_FALSE(fs::exists(state / "manifest.json"));
    CHECK_FALSE(fs::exists(extents / "lock"));
}

TEST_CASE("only what Spillway makes can be passed for removal", "[leftovers]") {
    const Places places;
    fs::create_directory(places.root / "photos");
    CHECK_THROWS_AS(remove_leftovers({{places.root / "photos", 0, ""}}), std::invalid_argument);
    fs::create_directories(places.nvme / "spillway.extents" / "photos");
    CHECK_THROWS_AS(remove_leftovers({{places.nvme / "spillway.extents" / "photos", 0, ""}}),
                    std::invalid_argument);
    CHECK(fs::exists(places.root / "photos"));
}

TEST_CASE("a leftover that came to life after the listing is not removed", "[leftovers]") {
    const Places places;
    static_cast<void>(places.create(places.out));
    const auto found = find_leftovers(places.out);
    REQUIRE(found.size() == 2);
    {
        const auto folder = StateFolder::open(places.out, LockMode::exclusive);
        CHECK_THROWS_AS(remove_leftovers(found), FolderRefused);
        CHECK_THROWS_AS(remove_leftovers({found[1]}), FolderRefused);
    }
    {
        auto folder = StateFolder::open(places.out, LockMode::exclusive);
        folder.note_commit(1);
    }
    CHECK_THROWS_WITH(remove_leftovers(found), Catch::Contains("no leftover any more"));
    CHECK(StateFolder::holds_run(places.out));
}

TEST_CASE("what is not understood is not touched", "[leftovers]") {
    const Places places;
    const auto run = places.committed_run(places.out);
    const auto manifest = places.out / "spillway.state" / "manifest.json";
    const auto text = file_text(manifest);
    for (const std::string unknown : {R"({"format_version": 2})", "not JSON"}) {
        set_file_text(manifest, unknown);
        CHECK(find_leftovers(places.out).empty());
        CHECK(find_leftovers(places.nvme).empty());
    }
    fs::remove(manifest);
    CHECK(find_leftovers(places.out).empty());  // its records say that it has committed
    set_file_text(manifest, text);
    set_file_text(places.extents_of(run) / "lock", "");
    CHECK(find_leftovers(places.nvme).empty());
}

TEST_CASE("damaged records are no reason to remove a run", "[leftovers]") {
    const Places places;
    places.committed_run(places.out);
    set_file_text(places.out / "spillway.state" / "record.0", std::string(4096, 'x'));
    CHECK(find_leftovers(places.out).empty());
    CHECK(find_leftovers(places.nvme).empty());
    CHECK_THROWS_WITH(StateFolder::start_over(places.out, places.nvme),
                      Catch::Contains("has committed"));
}

TEST_CASE("the draft of a manifest beside a whole one is a leftover", "[leftovers]") {
    const Places places;
    places.committed_run(places.out);
    const auto draft = places.out / "spillway.state" / "manifest.json.tmp";
    set_file_text(draft, "cut sh");
    const auto found = find_leftovers(places.out);
    REQUIRE(found.size() == 1);
    CHECK(found[0].path == draft);
    CHECK(found[0].bytes == 6);
    remove_leftovers(found);
    CHECK_FALSE(fs::exists(draft));
    CHECK(StateFolder::holds_run(places.out));
}

TEST_CASE("a copied OUT does not make the original's extents a leftover", "[leftovers]") {
    const Places places;
    places.committed_run(places.out);
    fs::copy(places.out, places.root / "copy", fs::copy_options::recursive);
    static_cast<void>(StateFolder::open(places.root / "copy", LockMode::exclusive));
    fs::remove_all(places.root / "copy");
    CHECK(find_leftovers(places.nvme).empty());
}

TEST_CASE("a moved OUT keeps its extents once it has been opened", "[leftovers]") {
    const Places places;
    places.committed_run(places.out);
    fs::rename(places.out, places.root / "moved");
    CHECK(find_leftovers(places.nvme).size() == 1);
    static_cast<void>(StateFolder::open(places.root / "moved", LockMode::exclusive));
    CHECK(find_leftovers(places.nvme).empty());
}

TEST_CASE("starting over removes a run that never committed and nothing else", "[leftovers]") {
    const Places places;
    const auto other = places.committed_run(places.root / "other");
    const auto extents = places.create(places.out).extents_folder();
    set_file_text(places.out / "metrics.jsonl", "x");
    StateFolder::start_over(places.out, places.nvme);
    CHECK_FALSE(fs::exists(extents));
    CHECK_FALSE(fs::exists(places.out / "spillway.state"));
    CHECK(fs::exists(places.out / "metrics.jsonl"));
    CHECK(fs::exists(places.extents_of(other)));
    StateFolder::start_over(places.out, places.nvme);
    StateFolder::start_over(places.root / "nowhere", {});
    CHECK_THROWS_AS(StateFolder::start_over(places.out, places.root / "nowhere"), FolderRefused);
}

TEST_CASE("starting over refuses a run that has committed", "[leftovers]") {
    const Places places;
    const auto run = places.committed_run(places.out);
    CHECK_THROWS_WITH(StateFolder::start_over(places.out, places.nvme),
                      Catch::Contains("has committed"));
    CHECK(fs::exists(places.extents_of(run) / "extents.0"));
    CHECK(StateFolder::holds_run(places.out));
    // Records lost, but the extents know of the commit.
    fs::remove(places.out / "spillway.state" / "record.0");
    fs::remove(places.out / "spillway.state" / "record.1");
    CHECK_THROWS_AS(StateFolder::start_over(places.out, places.nvme), FolderRefused);
}

TEST_CASE("starting over reclaims extents whose OUT was removed before a commit", "[leftovers]") {
    const Places places;
    const auto extents = places.create(places.out).extents_folder();
    fs::remove_all(places.out);
    StateFolder::start_over(places.out, places.nvme);
    CHECK_FALSE(fs::exists(extents));
}
