// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/recording_backend.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include <catch2/catch.hpp>

#include "nvme/io_queue.h"
#include "tests/nvme/patterns.h"
#include "tests/support/temporary_folder.h"

using namespace spillway::nvme;
using namespace spillway::testing;
using spillway::nvme::testing::contents;

namespace {

constexpr std::size_t block = 4096;

/// Four blocks of zeros on a real file, and a queue whose writes stay in memory.
struct Recorded {
    Recorded() { std::ofstream(file.path(), std::ios::binary) << std::string(4 * block, '\0'); }
    void write(std::size_t number, char value) {
        const std::vector<std::byte> bytes(block, static_cast<std::byte>(value));
        queue.submit(IoRequest::make_write(file, number * block, bytes)).wait().throw_if_error();
    }
    void flush() { queue.submit(IoRequest::make_flush(file)).wait().throw_if_error(); }
    /// First and last byte of each block of the real file.
    std::string picture() {
        const auto bytes = contents(file.path());
        std::string text;
        for (std::size_t i = 0; i < 4; ++i)
            for (const std::size_t at : {i * block, (i + 1) * block - 1})
                text += bytes[at] == std::byte{0} ? '.' : static_cast<char>(bytes[at]);
        return text;
    }

    TemporaryFolder folder;
    DirectFile file{folder.path() / "data", OpenMode::create_or_open, DirectMode::buffered};
    std::shared_ptr<RecordedDisk> disk = std::make_shared<RecordedDisk>();
    IoQueue queue{std::make_unique<RecordingBackend>(disk, 8), {}};
};

}  // namespace

TEST_CASE("recording_backend: reads see the newest data, the real file none of it") {
    Recorded recorded;
    recorded.write(1, 'a');
    recorded.write(1, 'b');
    std::vector<std::byte> read(3 * block);
    recorded.queue.submit(IoRequest::make_read(recorded.file, 0, read)).wait().throw_if_error();
    REQUIRE(read[0] == std::byte{0});
    REQUIRE(read[block] == std::byte{'b'});
    REQUIRE(read[2 * block] == std::byte{0});
    REQUIRE(recorded.picture() == "........");
    REQUIRE(recorded.disk->operations() == 3);
}

TEST_CASE("recording_backend: a power cut keeps what was flushed and only that") {
    Recorded recorded;
    recorded.write(0, 'a');
    recorded.flush();
    recorded.write(1, 'b');
    recorded.write(2, 'c');
    SECTION("nothing happened yet") {
        recorded.disk->materialise(0, keep_unflushed());
        REQUIRE(recorded.picture() == "........");
    }
    SECTION("before the flush even the first may be lost") {
        recorded.disk->materialise(1, drop_unflushed());
        REQUIRE(recorded.picture() == "........");
    }
    SECTION("after it the first is safe") {
        recorded.disk->materialise(4, drop_unflushed());
        REQUIRE(recorded.picture() == "aa......");
    }
    SECTION("the others may have arrived") {
        recorded.disk->materialise(4, keep_unflushed());
        REQUIRE(recorded.picture() == "aabbcc..");
    }
    SECTION("in any order and in parts") {
        recorded.disk->materialise(4, [](const RecordedOperation& write) {
            return write.index == 2 ? WriteFate::drop : WriteFate::keep_head;
        });
        REQUIRE(recorded.picture() == "aa..c...");
    }
    SECTION("onto a copy") {
        const TemporaryFolder copy;
        std::filesystem::copy(recorded.folder.path(), copy.path(),
                              std::filesystem::copy_options::recursive);
        recorded.disk->materialise(4, keep_unflushed(), recorded.folder.path(), copy.path());
        REQUIRE(recorded.picture() == "........");
        REQUIRE(contents(copy.path() / "data")[0] == std::byte{'a'});
    }
}

TEST_CASE("recording_backend: a flush does not cover writes that had not ended before it") {
    Recorded recorded;
    const std::vector<std::byte> bytes(block, std::byte{'x'});
    const std::shared_ptr<RecordedDisk> disk = recorded.disk;
    RecordingBackend backend(disk, 8);
    const std::vector<BackendOperation> together = {
        {0, IoOperation::write, &recorded.file, 0, const_cast<std::byte*>(bytes.data()), block},
        {1, IoOperation::flush, &recorded.file, 0, nullptr, 0}};
    REQUIRE(backend.submit(together) == 2);
    std::vector<BackendCompletion> completions(8);
    REQUIRE(backend.wait(completions) == 2);
    disk->materialise(2, drop_unflushed());
    REQUIRE(recorded.picture() == "........");
}

TEST_CASE("recording_backend: a flush covers its own file only") {
    Recorded recorded;
    DirectFile other(recorded.folder.path() / "other", OpenMode::create_or_open,
                     DirectMode::buffered);
    recorded.write(0, 'a');
    recorded.queue.submit(IoRequest::make_flush(other)).wait().throw_if_error();
    recorded.disk->materialise(2, drop_unflushed());
    REQUIRE(recorded.picture() == "........");
}

TEST_CASE("recording_backend: seeds tear at sectors and give each fate") {
    Recorded recorded;
    recorded.write(0, 'a');
    std::vector<bool> seen(5);
    for (std::uint64_t seed = 0; seed < 64; ++seed) {
        std::ofstream(recorded.file.path(), std::ios::binary) << std::string(4 * block, '\0');
        recorded.disk->materialise(1, seeded_fates(seed));
        const auto bytes = contents(recorded.file.path());
        const auto fate = seeded_fates(seed)(recorded.disk->log()[0]);
        seen[static_cast<std::size_t>(fate)] = true;
        std::size_t arrived = 0;
        for (std::size_t sector = 0; sector < 8; ++sector) {
            const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(sector * 512);
            REQUIRE(std::all_of(first, first + 512, [&](std::byte one) { return one == *first; }));
            arrived += *first == std::byte{'a'} ? 1U : 0U;
        }
        if (fate == WriteFate::keep)
            REQUIRE(arrived == 8);
        else if (fate == WriteFate::drop)
            REQUIRE(arrived == 0);
        else
            REQUIRE(arrived < 8);
    }
    REQUIRE(std::all_of(seen.begin(), seen.end(), [](bool one) { return one; }));
}

TEST_CASE("recording_backend: a disk that gives up changes nothing more") {
    Recorded recorded;
    recorded.write(0, 'a');
    recorded.disk->fail_from(1);
    REQUIRE_THROWS_WITH(recorded.write(1, 'b'), Catch::Contains("EIO"));
    REQUIRE_THROWS_WITH(recorded.flush(), Catch::Contains("EIO"));
    recorded.disk->materialise(3, keep_unflushed());
    REQUIRE(recorded.picture() == "aa......");
    recorded.disk->materialise(3, drop_unflushed());
    REQUIRE(recorded.disk->operations() == 3);
}
