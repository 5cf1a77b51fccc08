// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "offload/commit_table.h"
#include "offload/relocation.h"

namespace spillway::testing {

using Folders = std::vector<std::filesystem::path>;

/// Makes a small run with state on `drives` (none: in `out`) and two commits; closed. What the
/// second one names: its copies, checksums and places.
offload::CommitTable make_sample_state(const std::filesystem::path& out, const Folders& drives,
                                       const std::string& durability = "on");

/// relocate() of the run in `out`, opened for it.
offload::Relocation move_state(const std::filesystem::path& out, const Folders& drives,
                               const offload::RelocationOptions& options = {});

/// What is wrong with the state in `out`: it must be whole and hold what `expected` does, whatever
/// copies and places; "" if nothing.
[[nodiscard]] std::string wrong_with_state(const std::filesystem::path& out,
                                           const offload::CommitTable& expected);

/// Makes one more commit, of the same state.
void commit_again(const std::filesystem::path& out);

/// Every extents file below `root`, and those that the manifest of `out` names: sorted.
[[nodiscard]] Folders extents_below(const std::filesystem::path& root);
[[nodiscard]] Folders named_extents(const std::filesystem::path& out);

/// find_leftovers() in all folders, each once.
[[nodiscard]] std::vector<offload::Leftover> leftovers_in(const std::filesystem::path& out,
                                                          const Folders& drives);

}  // namespace spillway::testing
