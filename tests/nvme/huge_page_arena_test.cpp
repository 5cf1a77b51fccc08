// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/huge_page_arena.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/skip.h"

using spillway::nvme::HugePageArena;
using spillway::nvme::HugePages;
using spillway::nvme::PageKind;

namespace {

/// A figure in KiB that the kernel gives for the mapping that holds `address`.
std::size_t mapping_kib(const void* address, const std::string& key) {
    std::ifstream maps("/proc/self/smaps");
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    bool inside = false;
    for (std::string line; std::getline(maps, line);) {
        unsigned long first = 0;
        unsigned long last = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2)
            inside = first <= wanted && wanted < last;
        else if (inside && line.rfind(key + ":", 0) == 0)
            return std::stoul(line.substr(key.size() + 1));
    }
    return 0;
}

/// More huge pages set aside by the kernel for the life of the object; needs root.
class ReservedPages {
  public:
    ReservedPages() = default;
    ~ReservedPages() {
        if (added_)
            set(before_);
    }
    ReservedPages(const ReservedPages&) = delete;
    ReservedPages& operator=(const ReservedPages&) = delete;

    bool add(std::size_t pages) {
        before_ = count();
        added_ = true;
        set(before_ + pages);
        return count() == before_ + pages;
    }
    static std::size_t count() {
        std::ifstream file(setting);
        std::size_t pages = 0;
        return file >> pages ? pages : 0;
    }

  private:
    static constexpr const char* setting = "/proc/sys/vm/nr_hugepages";
    static void set(std::size_t pages) { std::ofstream(setting) << pages; }

    std::size_t before_ = 0;
    bool added_ = false;
};

}  // namespace

TEST_CASE("an arena is aligned, zeroed, rounded up and resident from the start") {
    const HugePageArena arena(5 * HugePageArena::page_bytes + 1);
    REQUIRE(arena.size_bytes() == 6 * HugePageArena::page_bytes);
    REQUIRE(arena.bytes().size() == arena.size_bytes());
    REQUIRE(reinterpret_cast<std::uintptr_t>(arena.bytes().data()) % HugePageArena::page_bytes ==
            0);
    REQUIRE(mapping_kib(arena.bytes().data(), "Rss") >= arena.size_bytes() / 1024);
    REQUIRE(std::all_of(arena.bytes().begin(), arena.bytes().end(),
                        [](std::byte one) { return one == std::byte{0}; }));
}

TEST_CASE("an arena says that it has huge pages only when it has") {
    const HugePageArena arena(8 * HugePageArena::page_bytes);
    if (arena.huge_pages() == HugePages::refused)
        return spillway::testing::skip("this machine refuses transparent huge pages");
    REQUIRE(mapping_kib(arena.bytes().data(), "AnonHugePages") > 0);
}

TEST_CASE("an arena works without huge pages and says so") {
    // In a child: the switch is for a whole process.
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        if (::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
            ::_exit(2);
        const HugePageArena arena(HugePageArena::page_bytes);
        arena.bytes().back() = std::byte{1};
        const bool is_small =
            arena.pages() == PageKind::small && arena.huge_pages() == HugePages::refused;
        const bool says_so = arena.note().find("4 KiB pages") != std::string::npos;
        ::_exit(is_small && says_so ? 0 : 1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    REQUIRE(WEXITSTATUS(status) == 0);
}

TEST_CASE("an arena asked for small pages has no others, and nothing to note") {
    const HugePageArena arena(4 * HugePageArena::page_bytes, PageKind::small);
    REQUIRE(arena.pages() == PageKind::small);
    REQUIRE(arena.note().empty());
    REQUIRE(mapping_kib(arena.bytes().data(), "AnonHugePages") == 0);
}

TEST_CASE("an arena lies on reserved huge pages where some are free, else says on what") {
    ReservedPages reserved;
    SECTION("there are") {
        if (!reserved.add(4))
            return spillway::testing::skip("huge pages cannot be reserved here");
        HugePageArena arena(3 * HugePageArena::page_bytes, PageKind::reserved_huge);
        REQUIRE(arena.pages() == PageKind::reserved_huge);
        REQUIRE(arena.huge_pages() == HugePages::granted);
        REQUIRE(arena.note().empty());
        REQUIRE(mapping_kib(arena.bytes().data(), "KernelPageSize") == 2048);
        arena.bytes().back() = std::byte{9};
        const HugePageArena moved(std::move(arena));
        REQUIRE(moved.pages() == PageKind::reserved_huge);
        REQUIRE(moved.bytes().back() == std::byte{9});
    }
    SECTION("not so many") {
        const std::size_t more = (ReservedPages::count() + 8) * HugePageArena::page_bytes;
        const HugePageArena arena(more, PageKind::reserved_huge);
        REQUIRE(arena.pages() != PageKind::reserved_huge);
        REQUIRE_THAT(arena.note(), Catch::Contains("I/O buffers lie on"));
        if (arena.pages() == PageKind::transparent_huge)
            REQUIRE_THAT(arena.note(),
                         Catch::Contains("ENOMEM") && Catch::Contains("vm.nr_hugepages"));
        REQUIRE(std::all_of(arena.bytes().begin(), arena.bytes().end(),
                            [](std::byte one) { return one == std::byte{0}; }));
    }
}

TEST_CASE("an empty arena takes nothing") {
    REQUIRE(HugePageArena().bytes().empty());
    REQUIRE(HugePageArena(0).size_bytes() == 0);
}

TEST_CASE("an arena moves and leaves an empty one behind") {
    HugePageArena first(HugePageArena::page_bytes);
    std::byte* const data = first.bytes().data();
    HugePageArena second(std::move(first));
    REQUIRE(second.bytes().data() == data);
    HugePageArena third(2 * HugePageArena::page_bytes);
    third = std::move(second);
    REQUIRE(third.bytes().data() == data);
    REQUIRE(third.size_bytes() == HugePageArena::page_bytes);
}

TEST_CASE("an arena that cannot be had is an error that names its size") {
    const std::size_t impossible = std::size_t{1} << 60U;
    REQUIRE_THROWS_AS(HugePageArena(impossible), std::system_error);
    REQUIRE_THROWS_WITH(HugePageArena(impossible), Catch::Contains(fmt::format("{}", impossible)));
    REQUIRE_THROWS_AS(HugePageArena(std::numeric_limits<std::size_t>::max()), std::system_error);
}
