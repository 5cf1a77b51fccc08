// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/data/data_file.h"

#include <cstring>
#include <fstream>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

using spillway::engine::DataFile;
using spillway::testing::TemporaryFolder;

namespace {

std::filesystem::path write(const TemporaryFolder& folder, const char* name,
                            const std::string& text) {
    const auto path = folder.path() / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
}

std::string read_text(const DataFile& file, std::uint64_t offset, std::size_t bytes) {
    std::vector<std::byte> out(bytes);
    file.read(offset, out);
    return {reinterpret_cast<const char*>(out.data()), out.size()};
}

}  // namespace

TEST_CASE("a data file is read at any place") {
    const TemporaryFolder folder;
    DataFile first(write(folder, "a", "In the beginning"));
    CHECK(first.size_bytes() == 16);
    CHECK(read_text(first, 7, 9) == "beginning");
    const DataFile moved(std::move(first));
    CHECK(read_text(moved, 0, 16) == "In the beginning");
    CHECK(moved.path() == folder.path() / "a");
}

TEST_CASE("a file that cannot serve as data is refused by name, with the reason") {
    const TemporaryFolder folder;
    const auto refused = [](const std::filesystem::path& path, const std::string& reason) {
        CHECK_THROWS_WITH(DataFile(path),
                          Catch::Contains(path.string()) && Catch::Contains(reason));
        CHECK_THROWS_AS(DataFile(path), std::invalid_argument);
    };
    const auto file = write(folder, "file", "text");
    refused(folder.path() / "missing", "does not exist");
    refused(file / "below", "cannot be read: Not a directory");
    refused(folder.path(), "is a folder");
    refused(write(folder, "empty", ""), "is empty");
    const auto pipe = folder.path() / "pipe";
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    refused(pipe, "is no regular file");
    refused("/dev/zero", "is no regular file");
}

TEST_CASE("a file without permission is refused by name") {
    if (::geteuid() == 0) {
        spillway::testing::skip("root may read every file");
        return;
    }
    const TemporaryFolder folder;
    const auto path = write(folder, "secret", "text");
    REQUIRE(::chmod(path.c_str(), 0) == 0);
    CHECK_THROWS_WITH(DataFile(path), Catch::Contains("secret: cannot be read: Permission denied"));
}

TEST_CASE("a file that became shorter is told by name") {
    const TemporaryFolder folder;
    const auto path = write(folder, "shrinking", "0123456789");
    const DataFile file(path);
    std::filesystem::resize_file(path, 4);
    CHECK(read_text(file, 0, 4) == "0123");
    std::vector<std::byte> out(8);
    CHECK_THROWS_WITH(file.read(0, out), Catch::Contains("shrinking: ends at byte 4") &&
                                             Catch::Contains("had 10 bytes"));
}
