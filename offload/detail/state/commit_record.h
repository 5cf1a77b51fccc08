// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "offload/commit_table.h"

namespace spillway::offload::detail {

/// The 4 KiB that make a table the newest commit.
struct CommitRecord {
    RunId run;
    std::uint64_t sequence = 0;
    std::uint64_t iteration = 0;
    std::uint64_t update = 0;
    std::uint32_t table_slot = 0;
    bool dirty = false;
    std::uint64_t table_bytes = 0;
    std::uint64_t table_hash = 0;  ///< XXH3-64
    std::uint64_t generation = 0;  ///< of the layout that the table is of; 0: format version 1
};

inline constexpr std::size_t record_bytes = 4096;

/// Fills all of `out` (record_bytes long). All that differs from zero lies in the first 512 bytes:
/// a drive writes a sector whole or not at all, so a power cut leaves the old record or the new
/// one.
void encode_record(const CommitRecord& record, std::span<std::byte> out);

struct BlankRecord {};  ///< never written: all zeros
struct DamagedRecord {
    std::string problem;
};

/// Throws std::runtime_error for a whole record of an unknown format version: a newer Spillway has
/// committed here, and taking an older commit instead would lose its work.
[[nodiscard]] std::variant<CommitRecord, BlankRecord, DamagedRecord> decode_record(
    std::span<const std::byte> bytes);

}  // namespace spillway::offload::detail
