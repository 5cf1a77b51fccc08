// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/relocation.h"

#include <cerrno>
#include <fstream>
#include <memory>

#include <catch2/catch.hpp>

#include "cpu_optim/isa.h"
#include "offload/detail/drives/extent_map.h"
#include "offload/detail/state/folder_lock.h"
#include "offload/plan.h"
#include "offload/state_reader.h"
#include "offload/tensor_optimizer.h"
#include "tests/nvme/mounts.h"
#include "tests/offload/sample_commits.h"
#include "tests/offload/sample_state.h"
#include "tests/offload/synthetic_training.h"
#include "tests/offload/tensor_script.h"
#include "tests/support/recording_backend.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using Catch::Matchers::Contains;

namespace {

namespace fs = std::filesystem;

class Drives {
  public:
    [[nodiscard]] fs::path operator[](const std::string& name) const {
        const auto path = root / name;
        fs::create_directory(path);
        return path;
    }

  private:
    TemporaryFolder folder_;

  public:
    const fs::path root = fs::canonical(folder_.path());
    const fs::path out = root / "out";
};

std::string manifest_of(const fs::path& out) {
    return file_text(out / StateFolder::folder_name / "manifest.json");
}

void flip_byte(const fs::path& file, std::uint64_t offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const auto byte = static_cast<char>(stream.get() ^ 4);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(byte);
}

/// Nothing has happened: the state is there and nothing else.
void check_unmoved(const Drives& drives, const CommitTable& expected, const std::string& manifest) {
    CHECK(wrong_with_state(drives.out, expected).empty());
    CHECK(manifest_of(drives.out) == manifest);
    CHECK(extents_below(drives.root) == named_extents(drives.out));
    CHECK(leftovers_in(drives.out, {drives["a"], drives["b"]}).empty());
    commit_again(drives.out);
    CHECK(wrong_with_state(drives.out, expected).empty());
}

const std::vector<std::vector<const char*>> stations{{"a", "b"}, {"c"}, {"b", "c"}, {"d", "b"},
                                                     {},         {"a"}, {"b"}};

}  // namespace

TEST_CASE("a run that moves between its commits ends with the same weights", "[relocation]") {
    for (const auto durability : {Durability::on, Durability::off}) {
        CAPTURE(static_cast<int>(durability));
        const Drives drives;
        SyntheticRun run;
        run.out = drives.out;
        run.nvme = drives["a"];
        run.steps = 2;
        run.placement.host_bytes = std::size_t{24} << 20;
        run.placement.chunk_bytes = std::size_t{64} << 10;
        run.placement.durability = durability;
        run.placement.commit_every = 1;
        static_cast<void>(run_synthetic(run));
        std::uint64_t generation = 0;
        for (const auto& station : stations) {
            if (durability == Durability::off && generation == 3)
                break;  // one copy takes the same road
            Folders to;
            for (const auto* name : station)
                to.push_back(drives[name]);
            const auto moved = move_state(drives.out, to);
            CHECK(moved.bytes > 0);
            CHECK(moved.left.empty());
            CHECK(extents_below(drives.root) == named_extents(drives.out));
            run.placement.nvme = !to.empty();
            run.placement.host_bytes = std::size_t{to.empty() ? 256U : 24U} << 20;
            run.more_nvme = to.empty() ? Folders{} : Folders(to.begin() + 1, to.end());
            ++run.steps;
            const auto outcome = run_synthetic(run);
            CHECK(outcome.resumed_from == run.steps - 1);
            const bool same = outcome.masters == reference_synthetic(run.steps, 0.05);
            CHECK(same);
            StateReader reader(drives.out, nvme::BackendKind::automatic);
            CHECK(reader.verify().damage.empty());
            CHECK(reader.manifest().generation == ++generation);
        }
    }
}

TEST_CASE("a client's run moves to the drives that it names", "[relocation]") {
    const Drives drives;
    const TensorScript script;
    const auto expected = script.uninterrupted();
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{16} << 20;
    options.chunk_bytes = std::size_t{64} << 10;
    options.isa = cpu_optim::supported_isas().back();
    options.out = drives.out;
    for (std::uint64_t iteration = 0; iteration <= TensorScript::iterations; ++iteration) {
        const auto& station = stations[iteration];
        options.nvme = station.empty() ? fs::path() : drives[station.front()];
        options.host_bytes = std::size_t{station.empty() ? 64U : 16U} << 20;
        options.more_nvme.clear();
        for (std::size_t further = 1; further < station.size(); ++further)
            options.more_nvme.push_back(drives[station[further]]);
        auto model = script.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        CHECK((optimizer.statistics().relocated_bytes > 0) == (iteration > 0));
        const auto note = optimizer.recover();
        CHECK(note.has_value() == (iteration > 0));
        if (iteration > 0)
            script.iterate(optimizer, model, iteration);
        const bool same = snapshot(optimizer, model) == expected[iteration];
        CHECK(same);
        optimizer.begin_commit(TensorScript::commit_after(iteration));
        optimizer.wait();
        CHECK(extents_below(drives.root).size() == std::max<std::size_t>(station.size(), 1));
    }
}

TEST_CASE("a client's run without a commit starts over where it is to be", "[relocation]") {
    const Drives drives;
    const TensorScript script;
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{16} << 20;
    options.out = drives.out;
    for (const auto* name : {"a", "b"}) {
        options.nvme = drives[name];
        auto model = script.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        CHECK_FALSE(optimizer.recover());
        CHECK(extents_below(drives.root).size() == 1);
        CHECK(optimizer.statistics().relocated_bytes == 0);
    }
}

TEST_CASE("a run without a commit has nothing to move", "[relocation]") {
    const Drives drives;
    auto folder = StateFolder::create(drives.out, drives["a"],
                                      {{.name = "x", .shape = {9}, .group = 0, .contributions = 1}},
                                      "on", "{}");
    CHECK_FALSE(relocate(folder, {drives["b"]}, {}));
    CHECK(folder.lies_on({drives["a"]}));
    CHECK(fs::is_empty(drives["b"]));
}

TEST_CASE("a damaged tile is named by a move, which leaves everything as it was", "[relocation]") {
    const Drives drives;
    const auto expected = make_sample_state(drives.out, {drives["a"]});
    const auto manifest = manifest_of(drives.out);
    const auto file = named_extents(drives.out).front();
    // Tile 2 of the first plane; the second commit wrote it, so that its copy is 1.
    const detail::ExtentLayout layout(expected.planes[0].copies.size(), Durability::on,
                                      training_planes);
    const auto offset = layout.offset_bytes(Plane::weight, expected.planes[0].copies[2], 2) + 1234;
    flip_byte(file, offset);
    const auto error = error_of([&] { move_state(drives.out, {drives["b"]}); });
    CHECK_THAT(error, Contains("'embedding'") && Contains("plane weight, tile 2") &&
                          Contains(file.string()) && Contains("are lost"));
    CHECK(extents_below(drives.root) == Folders{file});
    flip_byte(file, offset);
    check_unmoved(drives, expected, manifest);
}

TEST_CASE("a drive that fails or fills up during a move leaves everything as it was",
          "[relocation]") {
    for (const auto error : {ENOSPC, EIO}) {
        for (const auto operation : {nvme::IoOperation::write, nvme::IoOperation::flush}) {
            const Drives drives;
            const auto expected = make_sample_state(drives.out, {drives["a"]});
            const auto manifest = manifest_of(drives.out);
            const auto disk = std::make_shared<RecordedDisk>();
            const auto bad = drives["b"].string();
            disk->set_faults([&, written = 0](const RecordedOperation& found) mutable {
                const bool hit =
                    found.operation == operation && found.path.string().starts_with(bad);
                return hit && (operation == nvme::IoOperation::flush || ++written > 2) ? error : 0;
            });
            const auto text = error_of([&] {
                move_state(drives.out, {drives["b"]},
                           {.io = {.backend_factory = [&](std::size_t depth) {
                                return std::make_unique<RecordingBackend>(disk, depth, 7);
                            }}});
            });
            CHECK_THAT(text, Contains(bad) && Contains("extents.1"));
            check_unmoved(drives, expected, manifest);
        }
    }
}

TEST_CASE("a move needs room for the new copy, and says how much", "[relocation]") {
    const nvme::testing::MountedFolder disk("tmpfs", "size=1m");
    if (!disk.ok())
        return skip("no tmpfs can be mounted here: " + disk.refusal());
    const Drives drives;
    const auto expected = make_sample_state(drives.out, {drives["a"]});
    const auto manifest = manifest_of(drives.out);
    try {
        move_state(drives.out, {disk.path()});
        FAIL("it moved");
    } catch (const PlanRefused& refused) {
        CHECK_THAT(refused.what(), Contains(disk.path().string()));
        CHECK(refused.available_bytes <= std::size_t{1} << 20);
        CHECK(refused.needed_bytes > refused.available_bytes);
    }
    CHECK(fs::is_empty(disk.path()));
    check_unmoved(drives, expected, manifest);
}

TEST_CASE("a move that is asked to stop leaves everything as it was", "[relocation]") {
    const Drives drives;
    const auto expected = make_sample_state(drives.out, {drives["a"]});
    const auto manifest = manifest_of(drives.out);
    std::uint64_t told = 0;
    RelocationOptions options;
    options.progress = [&](std::uint64_t moved, std::uint64_t all) {
        CHECK(moved <= all);
        told = moved;
    };
    options.stop = [&] { return told > 0; };
    CHECK_THROWS_AS(move_state(drives.out, {drives["b"]}, options), RelocationStopped);
    CHECK(told > 0);
    check_unmoved(drives, expected, manifest);
}

TEST_CASE("folders that cannot be used are refused by a move", "[relocation]") {
    const Drives drives;
    const auto expected = make_sample_state(drives.out, {drives["a"]});
    const auto manifest = manifest_of(drives.out);
    const auto move_to = [&](const Folders& to) {
        return error_of([&] { move_state(drives.out, to); });
    };
    CHECK_THAT(move_to({drives.root / "nowhere"}), Contains("does not exist"));
    CHECK_THAT(move_to({drives["b"], drives["b"]}), Contains("is given twice"));
    const auto place =
        drives["b"] / StateFolder::extents_name /
        fs::directory_iterator(drives["a"] / StateFolder::extents_name)->path().filename();
    fs::create_directories(place);
    {
        const detail::FolderLock held(place, LockMode::exclusive);
        CHECK_THAT(move_to({drives["b"]}), Contains("in use") && Contains(place.string()));
    }
    set_file_text(place / "extents.7", "whose?");
    CHECK_THAT(move_to({drives["b"]}), Contains("holds the state of a run"));
    CHECK(fs::exists(place / "extents.7"));
    fs::remove_all(place);
    {
        const auto reader = StateFolder::open(drives.out, LockMode::shared_read);
        CHECK_THAT(move_to({drives["b"]}), Contains("being read"));
    }
    check_unmoved(drives, expected, manifest);
}

TEST_CASE("a copy of a run moves away without harm to the original", "[relocation]") {
    const Drives drives;
    const auto expected = make_sample_state(drives.out, {drives["a"]});
    const auto copy = drives.root / "copy";
    fs::copy(drives.out, copy, fs::copy_options::recursive);
    const auto moved = move_state(copy, {drives["b"]});
    CHECK_THAT(moved.left,
               Contains("a copy of the run lives there") && Contains(drives.out.string()));
    CHECK(wrong_with_state(copy, expected).empty());
    CHECK(wrong_with_state(drives.out, expected).empty());
    CHECK(leftovers_in(drives.out, {drives["a"], drives["b"]}).empty());
    CHECK(find_leftovers(copy).empty());
    for (const auto& out : {copy, drives.out}) {
        auto folder = StateFolder::open(out, LockMode::exclusive);
        finish_relocations(folder);
    }
    CHECK_THAT(error_of([&] { move_state(drives.out, {drives["b"]}); }),
               Contains("holds the state of a copy of this run in " + copy.string()));
    commit_again(drives.out);
    commit_again(copy);
    CHECK(wrong_with_state(copy, expected).empty());
    CHECK(wrong_with_state(drives.out, expected).empty());
}

TEST_CASE("extents of a moved run that somebody copied or mounted elsewhere are no leftover",
          "[relocation]") {
    const Drives drives;
    const auto expected = make_sample_state(drives.out, {drives["a"]});
    move_state(drives.out, {drives["b"]});
    commit_again(drives.out);
    fs::copy(drives["b"], drives.root / "backup", fs::copy_options::recursive);
    CHECK(find_leftovers(drives.root / "backup").empty());
    fs::rename(drives["b"], drives.root / "elsewhere");
    CHECK(find_leftovers(drives.root / "elsewhere").empty());
    CHECK(find_leftovers(drives.out).empty());
    fs::rename(drives.root / "elsewhere", drives.root / "b");
    CHECK(wrong_with_state(drives.out, expected).empty());
}

TEST_CASE("a folder with foreign files can be moved to, and keeps them", "[relocation]") {
    const Drives drives;
    const auto expected = make_sample_state(drives.out, {drives["a"]});
    const auto run = fs::directory_iterator(drives["a"] / StateFolder::extents_name)->path();
    const auto place = drives["b"] / StateFolder::extents_name / run.filename();
    fs::create_directories(place);
    set_file_text(place / "notes.txt", "x");
    set_file_text(run / "notes.txt", "y");
    CHECK(move_state(drives.out, {drives["b"]}).left.empty());
    CHECK(wrong_with_state(drives.out, expected).empty());
    CHECK(move_state(drives.out, {drives["a"]}).left.empty());
    CHECK(wrong_with_state(drives.out, expected).empty());
    CHECK(file_text(place / "notes.txt") == "x");
    CHECK(file_text(run / "notes.txt") == "y");
}
