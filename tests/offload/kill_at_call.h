// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <vector>

namespace spillway::testing {

inline constexpr std::size_t never_killed = ~std::size_t{0};
inline constexpr const char* no_ptrace = "ptrace is not allowed here";

/// Whether a system call, by its number, counts.
using CallFilter = std::function<bool(long)>;

/// Runs `action` in a child under ptrace and kills it before system call number `kill_at` of those
/// of its first thread that count. The ones that were carried out; nothing if this machine forbids
/// ptrace.
[[nodiscard]] std::optional<std::vector<long>> kill_before_call(
    std::size_t kill_at, const CallFilter& counts, const std::function<void()>& action);

[[nodiscard]] inline bool is_one_of(long call, std::initializer_list<long> calls) {
    return std::find(calls.begin(), calls.end(), call) != calls.end();
}

/// Only calls that change a disk matter: a kill before any other leaves what a kill before the next
/// such call does.
[[nodiscard]] bool changes_disk(long call);

}  // namespace spillway::testing
