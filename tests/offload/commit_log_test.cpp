// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/commit_log.h"

#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "tests/offload/as_nobody.h"
#include "tests/offload/sample_commits.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::offload;
using namespace spillway::testing;
using Start = CommitLog::Start;
using Condition = CommitLog::Recovered::Condition;

namespace {

namespace fs = std::filesystem;

class LogFolder {
  public:
    [[nodiscard]] CommitLog log(Start start, std::uint64_t generation = 0) {
        return {*queue_, folder_.path(), sample_run(), sample_shape, start, generation};
    }
    [[nodiscard]] fs::path file(const std::string& name) const { return folder_.path() / name; }
    [[nodiscard]] const fs::path& path() const { return folder_.path(); }

    /// A log with commits 1 ... `last`.
    void commit_up_to(std::uint64_t last) {
        auto writer = log(Start::create);
        for (std::uint64_t sequence = 1; sequence <= last; ++sequence)
            writer.commit(sample_table(sequence));
    }
    /// Changes one byte.
    void damage(const std::string& name, std::size_t offset) {
        auto text = file_text(file(name));
        text.at(offset) = static_cast<char>(text.at(offset) ^ 0x10);
        set_file_text(file(name), text);
    }
    std::uint64_t recovered_sequence() {
        auto reader = log(Start::open_read_only);
        const auto recovered = reader.recover();
        return recovered ? recovered->table.sequence : 0;
    }

  private:
    TemporaryFolder folder_;
    std::unique_ptr<spillway::nvme::IoQueue> queue_ = real_queue();
};

}  // namespace

TEST_CASE("a new commit log has four files and holds no commit", "[commit_log]") {
    LogFolder folder;
    auto log = folder.log(Start::create);
    CHECK_FALSE(log.recover());
    for (const char* name : {"table.0", "table.1"})
        CHECK(fs::file_size(folder.file(name)) == table_capacity_bytes(sample_shape));
    for (const char* name : {"record.0", "record.1"})
        CHECK(fs::file_size(folder.file(name)) == 4096);
    CHECK_FALSE(folder.log(Start::open_existing).recover());
    CHECK(log.buffer_bytes() >= table_capacity_bytes(sample_shape) + 4096);
}

TEST_CASE("a commit log is not created over another", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(1);
    CHECK_THROWS_WITH(folder.log(Start::create), Catch::Contains("record.0"));
    CHECK(folder.recovered_sequence() == 1);
}

TEST_CASE("commits alternate between the slots and the newest is recovered", "[commit_log]") {
    LogFolder folder;
    auto log = folder.log(Start::create);
    for (std::uint64_t sequence = 1; sequence <= 7; ++sequence) {
        const auto other = file_text(folder.file(sequence % 2 == 1 ? "record.1" : "record.0"));
        log.commit(sample_table(sequence));
        CHECK(file_text(folder.file(sequence % 2 == 1 ? "record.1" : "record.0")) == other);
        const auto recovered = folder.log(Start::open_read_only).recover();
        REQUIRE(recovered);
        CHECK(same(recovered->table, sample_table(sequence)));
        CHECK(recovered->condition == Condition::clean);
        CHECK(recovered->warning.empty());
    }
}

TEST_CASE("a resumed log goes on with the next sequence", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(3);
    {
        auto log = folder.log(Start::open_existing);
        CHECK_THROWS_WITH(log.commit(sample_table(4)), Catch::Contains("not been recovered"));
        REQUIRE(log.recover());
        CHECK_THROWS_WITH(log.commit(sample_table(3)), Catch::Contains("must be 4"));
        CHECK_THROWS_WITH(log.commit(sample_table(5)), Catch::Contains("must be 4"));
        log.commit(sample_table(4));
    }
    CHECK(folder.recovered_sequence() == 4);
}

TEST_CASE("the first commit has sequence 1 and a table must fit the run", "[commit_log]") {
    LogFolder folder;
    auto log = folder.log(Start::create);
    CHECK_THROWS_AS(log.commit(sample_table(2)), std::invalid_argument);
    CHECK_THROWS_WITH(log.commit(sample_table(1, {6, 3})),
                      Catch::Contains("6 tiles") && Catch::Contains("5, 3"));
    CHECK_FALSE(log.recover());
    log.commit(sample_table(1));
    CHECK(folder.recovered_sequence() == 1);
}

TEST_CASE("a damaged newest record or table falls back to the commit before, and says so",
          "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(4);  // 4 lies in slot 1
    for (const char* name : {"record.1", "table.1"}) {
        for (const std::size_t offset :
             {std::size_t{0}, std::size_t{20}, std::size_t{100}, std::size_t{200}}) {
            folder.damage(name, offset);
            const auto recovered = folder.log(Start::open_existing).recover();
            REQUIRE(recovered);
            CHECK(same(recovered->table, sample_table(3)));
            CHECK_THAT(recovered->warning,
                       Catch::Contains("record.1") && Catch::Contains(folder.path().string()));
            folder.damage(name, offset);  // and back
        }
    }
    folder.damage("record.1", 4000);  // where a record is zeros
    CHECK(folder.recovered_sequence() == 3);
    auto log = folder.log(Start::open_existing);
    REQUIRE(log.recover());
    log.commit(sample_table(4));
    CHECK(folder.recovered_sequence() == 4);
}

TEST_CASE("damage to the older commit does not matter", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(4);
    folder.damage("table.0", 150);
    folder.damage("record.0", 30);
    CHECK(folder.recovered_sequence() == 4);
}

TEST_CASE("a cut or emptied table falls back to the commit before", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(4);
    fs::resize_file(folder.file("table.1"), 0);
    CHECK(folder.recovered_sequence() == 3);
    fs::remove(folder.file("table.1"));
    CHECK(folder.recovered_sequence() == 3);
    auto log = folder.log(Start::open_existing);
    const auto recovered = log.recover();
    REQUIRE(recovered);
    CHECK_THAT(recovered->warning, Catch::Contains("table.1 is missing"));
    log.commit(sample_table(4));
    CHECK(folder.recovered_sequence() == 4);
}

TEST_CASE("when no record counts the error says what was found in each slot", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(2);
    folder.damage("record.0", 40);
    folder.damage("table.1", 100);
    auto log = folder.log(Start::open_existing);
    CHECK_THROWS_AS(log.recover(), std::runtime_error);
    CHECK_THROWS_WITH(log.recover(), Catch::Contains(folder.path().string()) &&
                                         Catch::Contains("record.0: its checksum") &&
                                         Catch::Contains("checksum of table.1") &&
                                         Catch::Contains("Restore"));
    CHECK_THROWS_AS(log.commit(sample_table(1)), std::logic_error);
}

TEST_CASE("the only commit damaged is an error and not a fresh start", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(1);
    folder.damage("record.0", 40);
    CHECK_THROWS_WITH(folder.log(Start::open_existing).recover(),
                      Catch::Contains("record.1: never written"));
}

TEST_CASE("records of another run or slot do not count", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(2);
    auto queue = real_queue();
    CommitLog other(*queue, folder.path(), RunId::random(), sample_shape, Start::open_read_only);
    CHECK_THROWS_WITH(other.recover(), Catch::Contains("belongs to run " + sample_run().text()));
    fs::copy_file(folder.file("record.1"), folder.file("record.0"),
                  fs::copy_options::overwrite_existing);
    fs::copy_file(folder.file("table.1"), folder.file("table.0"),
                  fs::copy_options::overwrite_existing);
    const auto recovered = folder.log(Start::open_read_only).recover();
    REQUIRE(recovered);
    CHECK(recovered->table.sequence == 2);
    CHECK_THAT(recovered->warning, Catch::Contains("names table.1"));
}

TEST_CASE("a run of another shape cannot use the commits", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(2);
    auto queue = real_queue();
    CommitLog other(*queue, folder.path(), sample_run(), {6, 3}, Start::open_read_only);
    CHECK_THROWS_WITH(other.recover(), Catch::Contains("5 tiles") && Catch::Contains("6 and 3"));
}

TEST_CASE("a log whose creation was cut short holds no commit and is completed", "[commit_log]") {
    const std::vector<std::string> in_order{"record.0", "record.1", "table.0", "table.1"};
    for (std::size_t made = 0; made <= in_order.size(); ++made) {
        for (const std::size_t length : {std::size_t{0}, std::size_t{4096}}) {
            LogFolder folder;
            for (std::size_t file = 0; file < made; ++file)
                set_file_text(folder.file(in_order[file]), std::string(length, '\0'));
            CHECK_FALSE(folder.log(Start::open_read_only).recover());
            auto log = folder.log(Start::open_existing);
            CHECK_FALSE(log.recover());
            log.commit(sample_table(1));
            log.commit(sample_table(2));
            CHECK(folder.recovered_sequence() == 2);
        }
    }
}

TEST_CASE("a dirty commit is recovered as dirty until the next one", "[commit_log]") {
    LogFolder folder;
    auto log = folder.log(Start::create);
    CHECK_THROWS_WITH(log.mark_dirty(), Catch::Contains("no commit"));
    log.commit(sample_table(1));
    log.mark_dirty();
    auto recovered = folder.log(Start::open_existing).recover();
    REQUIRE(recovered);
    CHECK(recovered->condition == Condition::dirty);
    CHECK(same(recovered->table, sample_table(1)));
    log.commit(sample_table(2));
    recovered = folder.log(Start::open_existing).recover();
    REQUIRE(recovered);
    CHECK(recovered->condition == Condition::clean);
    folder.damage("record.1",
                  40);  // the commit before was overwritten in place: it must still be dirty
    recovered = folder.log(Start::open_existing).recover();
    REQUIRE(recovered);
    CHECK(recovered->condition == Condition::dirty);
}

TEST_CASE("a commit counts in its own layout alone, and that is no damage", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(3);
    auto log = folder.log(Start::open_existing);
    CHECK_THROWS_AS(log.next_layout(sample_shape), std::logic_error);
    REQUIRE(log.recover());
    log.next_layout(sample_shape).commit(sample_table(4));
    // Not published: the old layout goes on as if nothing had been.
    auto old = folder.log(Start::open_existing).recover();
    REQUIRE(old);
    CHECK(old->table.sequence == 3);
    CHECK(old->warning.empty());
    // Published: the new one.
    auto next = folder.log(Start::open_existing, 1);
    const auto moved = next.recover();
    REQUIRE(moved);
    CHECK(same(moved->table, sample_table(4)));
    CHECK(moved->warning.empty());
    next.commit(sample_table(5));
    next.commit(sample_table(6));
    CHECK(folder.log(Start::open_read_only, 1).recover()->table.sequence == 6);
    CHECK_THROWS_WITH(folder.log(Start::open_read_only).recover(),
                      Catch::Contains("layout 1, the manifest is of layout 0"));
}

TEST_CASE("the next layout's tables may be larger", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(2);
    auto log = folder.log(Start::open_existing);
    REQUIRE(log.recover());
    auto shape = sample_shape;
    shape.places = 5000;
    auto table = sample_table(3);
    table.places.resize(shape.places, 77);
    log.next_layout(shape).commit(table);
    CHECK(folder.recovered_sequence() == 2);
    const auto queue = real_queue();
    CommitLog next(*queue, folder.path(), sample_run(), shape, Start::open_existing, 1);
    CHECK(next.recover()->table.places == table.places);
}

TEST_CASE("a log open for reading refuses to write", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(1);
    auto log = folder.log(Start::open_read_only);
    REQUIRE(log.recover());
    CHECK_THROWS_AS(log.commit(sample_table(2)), std::logic_error);
    CHECK_THROWS_AS(log.mark_dirty(), std::logic_error);
}

TEST_CASE("a log is read without write access", "[commit_log]") {
    LogFolder folder;
    folder.commit_up_to(2);
    for (const auto& entry : fs::directory_iterator(folder.path()))
        fs::permissions(entry.path(), fs::perms{0444});
    fs::permissions(folder.path(), fs::perms{0555});
    {
        const AsNobody nobody;
        if (nobody.can_read(folder.path())) {
            CHECK(std::ofstream(folder.file("record.0"), std::ios::app).fail());
            CHECK(folder.recovered_sequence() == 2);
        } else {
            skip("an ordinary user cannot reach " + folder.path().string());
        }
    }
    fs::permissions(folder.path(), fs::perms{0755});
}
