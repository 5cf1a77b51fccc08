// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/commit_record.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>
#include <xxhash.h>

#include "offload/detail/state/byte_cursor.h"

namespace spillway::offload::detail {
namespace {

using Magic = std::array<char, 8>;
constexpr Magic magic{'S', 'P', 'W', 'R', 'E', 'C', 'R', 'D'};
constexpr std::uint32_t first_layout_version = 1;
constexpr std::uint32_t later_layout_version = 2;  ///< has a generation
constexpr std::size_t hash_offset = 8;
constexpr std::size_t hashed_from = 16;
constexpr std::size_t sector_bytes = 512;

std::uint64_t hash_of(std::span<const std::byte> record) {
    const auto hashed = record.subspan(hashed_from);
    return XXH3_64bits(hashed.data(), hashed.size());
}

}  // namespace

void encode_record(const CommitRecord& record, std::span<std::byte> out) {
    if (out.size() != record_bytes)
        throw std::invalid_argument(
            fmt::format("a commit record takes {} bytes, {} were given", record_bytes, out.size()));
    std::ranges::fill(out, std::byte{0});
    ByteWriter writer(out.first(sector_bytes));
    writer.put(magic);
    writer.put(std::uint64_t{0});  // the hash, once the rest is there
    writer.put(record.generation == 0 ? first_layout_version : later_layout_version);
    writer.put(record.table_slot);
    writer.put(static_cast<std::uint64_t>(record.dirty ? 1 : 0));
    writer.put(record.run);
    writer.put(record.sequence);
    writer.put(record.iteration);
    writer.put(record.update);
    writer.put(record.table_bytes);
    writer.put(record.table_hash);
    writer.put(record.generation);  // 0, as version 1 has it there
    const std::uint64_t hash = hash_of(out);
    std::memcpy(out.data() + hash_offset, &hash, sizeof hash);
}

std::variant<CommitRecord, BlankRecord, DamagedRecord> decode_record(
    std::span<const std::byte> bytes) {
    if (bytes.size() != record_bytes)
        return DamagedRecord{
            fmt::format("it has {} bytes, needed are {}", bytes.size(), record_bytes)};
    if (std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; }))
        return BlankRecord{};
    ByteReader reader(bytes);
    if (reader.get<Magic>() != magic)
        return DamagedRecord{"it does not start as a commit record does"};
    if (const auto stored = reader.get<std::uint64_t>(), found = hash_of(bytes); stored != found)
        return DamagedRecord{
            fmt::format("its checksum is {:016x}, needed is {:016x}", found, stored)};
    const auto version = reader.get<std::uint32_t>();
    if (version != first_layout_version && version != later_layout_version)
        throw std::runtime_error(fmt::format(
            "a commit record has format version {}; this Spillway reads {} and {}: use the newer "
            "one",
            version, first_layout_version, later_layout_version));
    CommitRecord record;
    record.table_slot = reader.get<std::uint32_t>();
    record.dirty = reader.get<std::uint64_t>() != 0;
    record.run = reader.get<RunId>();
    record.sequence = reader.get<std::uint64_t>();
    record.iteration = reader.get<std::uint64_t>();
    record.update = reader.get<std::uint64_t>();
    record.table_bytes = reader.get<std::uint64_t>();
    record.table_hash = reader.get<std::uint64_t>();
    record.generation = version == first_layout_version ? 0 : reader.get<std::uint64_t>();
    return record;
}

}  // namespace spillway::offload::detail
