// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <catch2/catch.hpp>
#include <sys/syscall.h>

#include "tests/offload/kill_at_call.h"
#include "tests/offload/sample_folders.h"
#include "tests/support/skip.h"

using namespace spillway::offload;
using namespace spillway::testing;

namespace {

namespace fs = std::filesystem;

bool nothing_left(const Places& places) {
    const auto extents = places.nvme / "spillway.extents";
    return (!fs::exists(places.out) || fs::is_empty(places.out)) &&
           (!fs::exists(extents) || fs::is_empty(extents));
}

}  // namespace

TEST_CASE("a run killed at any point of its creation is opened or reclaimed",
          "[state_folder][crash]") {
    const auto action = [](const Places& places) {
        return [&places] { static_cast<void>(places.create(places.out)); };
    };
    const Places probe;
    const auto calls = kill_before_call(never_killed, changes_disk, action(probe));
    if (!calls)
        return skip(no_ptrace);
    REQUIRE(StateFolder::holds_run(probe.out));
    std::size_t unfinished = 0;
    std::size_t finished = 0;
    for (std::size_t point = 0; point < calls->size(); ++point) {
        CAPTURE(point);
        const Places places;
        const bool cleaned_by_hand = point % 2 == 1;
        REQUIRE(kill_before_call(point, changes_disk, action(places)));
        if (StateFolder::holds_run(places.out)) {
            ++finished;
            CHECK_NOTHROW(StateFolder::open(places.out, LockMode::exclusive));
        } else if (fs::exists(places.out)) {
            ++unfinished;
            CHECK_THROWS_AS(StateFolder::open(places.out, LockMode::exclusive), FolderRefused);
        }
        if (cleaned_by_hand && fs::exists(places.out))
            remove_leftovers(find_leftovers(places.out));
        else
            StateFolder::start_over(places.out, places.nvme);
        remove_leftovers(find_leftovers(places.nvme));
        CHECK(nothing_left(places));
        CHECK_NOTHROW(places.create(places.out));
    }
    CHECK(unfinished > 10);
    CHECK(finished > 0);
}

TEST_CASE("starting over that is killed at any point is finished by starting over again",
          "[state_folder][crash]") {
    const auto action = [](const Places& places) {
        return [&places] { StateFolder::start_over(places.out, places.nvme); };
    };
    const Places probe;
    static_cast<void>(probe.create(probe.out));
    const auto calls = kill_before_call(never_killed, changes_disk, action(probe));
    if (!calls)
        return skip(no_ptrace);
    REQUIRE(nothing_left(probe));
    for (std::size_t point = 0; point < calls->size(); ++point) {
        CAPTURE(point);
        const Places places;
        {
            const auto folder = places.create(places.out);
            set_file_text(folder.extents_file(), "data");
            set_file_text(folder.folder() / "table.0", "data");
        }
        REQUIRE(kill_before_call(point, changes_disk, action(places)));
        CHECK_NOTHROW(StateFolder::start_over(places.out, places.nvme));
        CHECK(nothing_left(places));
    }
}

TEST_CASE("the manifest is flushed, renamed and its folder flushed, in this order",
          "[state_folder][crash]") {
    const Places places;
    const auto calls = kill_before_call(
        never_killed,
        [](long call) {
            return is_one_of(call, {SYS_mkdir, SYS_mkdirat, SYS_pwrite64, SYS_fsync, SYS_rename,
                                    SYS_renameat, SYS_renameat2});
        },
        [&] { static_cast<void>(places.create(places.out)); });
    if (!calls)
        return skip(no_ptrace);
    std::vector<long> order;
    for (const long call : *calls)
        order.push_back(is_one_of(call, {SYS_renameat, SYS_renameat2}) ? SYS_rename
                        : call == SYS_mkdirat                          ? SYS_mkdir
                                                                       : call);
    CHECK(order == std::vector<long>{SYS_mkdir, SYS_fsync,     // OUT
                                     SYS_mkdir, SYS_fsync,     // spillway.state
                                     SYS_pwrite64, SYS_fsync,  // lock
                                     SYS_pwrite64, SYS_fsync,
                                     SYS_fsync,             // draft of the manifest, folder
                                     SYS_mkdir, SYS_fsync,  // spillway.extents
                                     SYS_mkdir, SYS_fsync,  // the run's own
                                     SYS_pwrite64, SYS_fsync, SYS_fsync,  // its lock, folder
                                     SYS_rename, SYS_fsync});             // manifest, folder
}
