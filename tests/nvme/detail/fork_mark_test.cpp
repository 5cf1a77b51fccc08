// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/fork_mark.h"

#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

using spillway::nvme::detail::ForkMark;

TEST_CASE("fork_mark: a child knows its parent's marks from its own") {
    const ForkMark mark;
    REQUIRE(mark.is_here());
    REQUIRE(mark.owner() == ::getpid());
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const ForkMark own;
        const bool is_right = !mark.is_here() && own.is_here() && own.owner() == ::getpid();
        ::_exit(is_right ? 0 : 1);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(mark.is_here());
}
