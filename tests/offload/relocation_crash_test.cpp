// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cerrno>
#include <memory>

#include <catch2/catch.hpp>
#include <sys/syscall.h>

#include "tests/offload/kill_at_call.h"
#include "tests/offload/sample_state.h"
#include "tests/support/recording_backend.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

namespace fs = std::filesystem;

/// A run, the drives it is on and those it is to go to. All below `root`.
struct Journey {
    const char* name;
    std::vector<const char*> from;
    std::vector<const char*> to;
};

const std::vector<Journey> journeys{{"one drive to two others", {"a"}, {"b", "c"}},
                                    {"two drives to one of them", {"a", "b"}, {"b"}},
                                    {"two drives to two, one shared", {"a", "b"}, {"c", "a"}},
                                    {"a drive to the folder", {"a"}, {}},
                                    {"the folder to two drives", {}, {"a", "b"}}};

class Site {
  public:
    explicit Site(const Journey& journey) {
        fs::create_directory(root);
        for (const auto* name : {"a", "b", "c"})
            fs::create_directory(root / name);
        for (const auto* name : journey.from)
            from.push_back(root / name);
        for (const auto* name : journey.to)
            to.push_back(root / name);
        expected = make_sample_state(out, from);
    }
    [[nodiscard]] Folders drives() const { return {root / "a", root / "b", root / "c"}; }

    /// Moves the state on a disk whose power goes at operation `cut`; everything stands as it does
    /// then. How many operations there were.
    std::size_t move_until_power_cut(std::size_t cut, const FateChooser& fate) const {
        const Watchdog watchdog(std::chrono::seconds(60));
        const auto disk = std::make_shared<RecordedDisk>();
        const auto frozen = folder_.path() / "frozen";
        disk->set_faults([&](const RecordedOperation& operation) {
            if (operation.index == cut)
                fs::copy(root, frozen, fs::copy_options::recursive);
            return operation.index >= cut ? EIO : 0;
        });
        try {
            move_state(out, to, {.io = {.backend_factory = [&](std::size_t depth) {
                                     return std::make_unique<RecordingBackend>(disk, depth,
                                                                               cut + 1);
                                 }}});
        } catch (const std::exception&) {  // the power went
        }
        if (fs::exists(frozen)) {
            fs::remove_all(root);
            fs::rename(frozen, root);
        }
        disk->materialise(std::min(cut, disk->operations()), fate);
        return disk->operations();
    }

    /// Whatever an interruption left: the state is whole, what is of no use is found and removed,
    /// and the run goes on, where it is and where it is to be.
    void check_after_interruption(bool cleaned_by_hand) const {
        CHECK(wrong_with_state(out, expected).empty());
        if (cleaned_by_hand) {
            remove_leftovers(leftovers_in(out, drives()));
            CHECK(leftovers_in(out, drives()).empty());
            CHECK(extents_below(root) == named_extents(out));
            CHECK(wrong_with_state(out, expected).empty());
            commit_again(out);
        }
        {
            auto folder = StateFolder::open(out, LockMode::exclusive);
            finish_relocations(folder);
            if (!folder.lies_on(to))
                CHECK(relocate(folder, to, {}));
            CHECK(folder.lies_on(to));
        }
        commit_again(out);
        CHECK(wrong_with_state(out, expected).empty());
        CHECK(extents_below(root) == named_extents(out));
        CHECK(leftovers_in(out, drives()).empty());
    }

  private:
    TemporaryFolder folder_{quick_place()};

  public:
    const fs::path root = fs::canonical(folder_.path()) / "site";
    const fs::path out = root / "out";
    Folders from;
    Folders to;
    CommitTable expected;
};

}  // namespace

TEST_CASE("a power cut at any operation of a move leaves the old layout or the new one",
          "[relocation][crash]") {
    for (const auto& journey : journeys) {
        std::size_t operations = 0;
        {
            const Site site(journey);
            operations = site.move_until_power_cut(~std::size_t{0}, drop_unflushed());
            site.check_after_interruption(false);
        }
        REQUIRE(operations > 20);
        // Every operation at the end, where the layouts change; some while the tiles are copied.
        for (std::size_t cut = 0; cut < operations; cut += cut + 14 < operations ? 7 : 1) {
            CAPTURE(journey.name, cut, operations);
            const Site site(journey);
            site.move_until_power_cut(cut, cut % 3 == 0   ? drop_unflushed()
                                           : cut % 3 == 1 ? keep_unflushed()
                                                          : seeded_fates(cut));
            site.check_after_interruption(cut % 2 == 0);
        }
    }
}

TEST_CASE("a move that is killed at any point leaves the old layout or the new one",
          "[relocation][crash]") {
    for (const auto& journey : journeys) {
        const auto action = [](const Site& site) {
            return [&site] {
                move_state(site.out, site.to,
                           {.io = {.every_drive = {.backend = nvme::BackendKind::threads}}});
            };
        };
        std::size_t points = 0;
        {
            const Site probe(journey);
            const auto calls = kill_before_call(never_killed, changes_disk, action(probe));
            if (!calls)
                return skip(no_ptrace);
            points = calls->size();
            probe.check_after_interruption(false);
        }
        REQUIRE(points > 30);
        std::size_t stayed = 0;
        std::size_t moved = 0;
        for (std::size_t point = 0; point < points; point += 3) {
            CAPTURE(journey.name, point, points);
            const Site site(journey);
            REQUIRE(kill_before_call(point, changes_disk, action(site)));
            ++(StateFolder::open(site.out, LockMode::shared_read).lies_on(site.to) ? moved
                                                                                   : stayed);
            site.check_after_interruption(point % 2 == 0);
        }
        CHECK(stayed > 5);
        CHECK(moved > 1);
    }
}

TEST_CASE("the new manifest is renamed after the last flush and before anything is removed",
          "[relocation][crash]") {
    const Site site(journeys.front());
    const auto counts = [](long call) {
        return is_one_of(call, {SYS_fsync, SYS_rename, SYS_renameat, SYS_renameat2, SYS_unlink,
                                SYS_unlinkat, SYS_rmdir});
    };
    const auto calls = kill_before_call(never_killed, counts, [&] {
        move_state(site.out, site.to,
                   {.io = {.every_drive = {.backend = nvme::BackendKind::threads}}});
    });
    if (!calls)
        return skip(no_ptrace);
    const auto is_rename = [](long call) {
        return is_one_of(call, {SYS_rename, SYS_renameat, SYS_renameat2});
    };
    const auto renamed = std::find_if(calls->begin(), calls->end(), is_rename);
    REQUIRE(renamed != calls->end());
    CHECK(std::none_of(renamed + 1, calls->end(), is_rename));
    // Draft and its folder; of each drive its folders, its lock and its file.
    CHECK(std::count(calls->begin(), renamed, SYS_fsync) >= 2 + 2 * 4);
    const auto is_removal = [](long call) {
        return is_one_of(call, {SYS_unlink, SYS_unlinkat, SYS_rmdir});
    };
    CHECK(std::none_of(calls->begin(), renamed, is_removal));
    REQUIRE(renamed + 1 != calls->end());
    CHECK(*(renamed + 1) == SYS_fsync);
    CHECK(std::any_of(renamed, calls->end(), is_removal));
}
