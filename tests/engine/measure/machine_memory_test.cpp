// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/machine_memory.h"

#include <fstream>
#include <stdexcept>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

using namespace spillway::engine;
namespace fs = std::filesystem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

/// A root with 1000 MiB available and these files.
class FakeRoot {
  public:
    FakeRoot() { write("proc/meminfo", "MemTotal: 2048000 kB\nMemAvailable: 1024000 kB\n"); }
    void write(const fs::path& path, const std::string& text) const {
        fs::create_directories((folder_.path() / path).parent_path());
        std::ofstream(folder_.path() / path) << text;
    }
    [[nodiscard]] const fs::path& path() const { return folder_.path(); }

  private:
    spillway::testing::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("machine_memory: without control groups the machine is the limit") {
    const FakeRoot root;
    const auto available = available_memory(root.path());
    CHECK(available.bytes == 1000 * mib);
    CHECK(available.limited_by == "the machine");
}

TEST_CASE("machine_memory: a version 2 group limits, its file cache does not count as used") {
    const FakeRoot root;
    root.write("proc/self/cgroup", "0::/a/b\n");
    root.write("sys/fs/cgroup/a/b/memory.max", "max\n");
    root.write("sys/fs/cgroup/a/b/memory.current", "1\n");
    root.write("sys/fs/cgroup/a/memory.max", std::to_string(512 * mib));
    root.write("sys/fs/cgroup/a/memory.current", std::to_string(300 * mib));
    root.write("sys/fs/cgroup/a/memory.stat",
               "anon 5\ninactive_file " + std::to_string(200 * mib) + "\n");
    const auto available = available_memory(root.path());
    CHECK(available.bytes == 412 * mib);
    CHECK(available.limited_by == (root.path() / "sys/fs/cgroup/a").string());
}

TEST_CASE(
    "machine_memory: a version 1 group limits, whether its path is visible or only its mount") {
    const FakeRoot root;
    const std::string group = GENERATE("", "docker/123/");
    root.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/123\n0::/\n");
    root.write("sys/fs/cgroup/memory/" + group + "memory.limit_in_bytes",
               std::to_string(256 * mib));
    root.write("sys/fs/cgroup/memory/" + group + "memory.usage_in_bytes", std::to_string(56 * mib));
    CHECK(available_memory(root.path()).bytes == 200 * mib);
}

TEST_CASE("machine_memory: a group above its limit leaves nothing") {
    const FakeRoot root;
    root.write("proc/self/cgroup", "0::/\n");
    root.write("sys/fs/cgroup/memory.max", "1000");
    root.write("sys/fs/cgroup/memory.current", "2000");
    CHECK(available_memory(root.path()).bytes == 0);
}

TEST_CASE("machine_memory: a kernel that does not say is an error") {
    const spillway::testing::TemporaryFolder empty;
    CHECK_THROWS_AS(available_memory(empty.path()), std::runtime_error);
    CHECK_THROWS_AS(resident_memory(empty.path()), std::runtime_error);
}

TEST_CASE("machine_memory: the margin is a tenth within bounds") {
    CHECK(memory_margin(0) == 256 * mib);
    CHECK(memory_margin(10000 * mib) == 1000 * mib);
    CHECK(memory_margin(std::size_t{1} << 40) == 4096 * mib);
}

TEST_CASE("machine_memory: resident memory sees what is touched") {
    const auto before = resident_memory();
    const std::vector<char> touched(64 * mib, 1);
    const auto after = resident_memory();
    CHECK(after.now_bytes >= before.now_bytes + 60 * mib);
    CHECK(after.peak_bytes >= after.now_bytes);
    CHECK(touched.back() == 1);
    CHECK(usable_processors() >= 1);
}
