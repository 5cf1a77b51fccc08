// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/commit_table.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>
#include <xxhash.h>

#include "offload/detail/state/byte_cursor.h"

namespace spillway::offload {
namespace {

// The table as it lies in the file, offsets in bytes:
//     0  magic                     24  length of all      72  tiles
//     8  XXH3-64 of all from 16    32  run                80  tensors (u32), client state bytes
//     (u32)
//    16  version, planes (u32, a bit each)     48  sequence, iteration, update
//    88  tensor_steps (u64 each); per plane: copies (u8 each, padded to 8), checksums (u64 each);
//        on several drives: places (u64 each); with factored second moments: those (f32 each);
//        client state
using Magic = std::array<char, 8>;
constexpr Magic magic{'S', 'P', 'W', 'T', 'A', 'B', 'L', 'E'};
constexpr std::uint32_t first_version = 1;
constexpr std::uint32_t several_drives = 1;    ///< on top of it
constexpr std::uint32_t factored_moments = 2;  ///< on top of these
constexpr std::size_t hash_offset = 8;
constexpr std::size_t hashed_from = 16;
constexpr std::size_t header_bytes = 88;
constexpr std::size_t page_bytes = 4096;

/// 2^56 elements, the most that an ElementOrder has: no product below can overflow.
constexpr std::uint64_t most_tiles = (std::uint64_t{1} << 56) / tile_elements;

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
    return (value + step - 1) / step * step;
}

/// Without the client state.
std::uint64_t fixed_bytes(const CommitTableShape& shape) {
    const std::uint64_t plane = round_up(shape.tiles, 8) + 8 * shape.tiles;
    return header_bytes + std::uint64_t{8} * shape.tensors + shape.planes.size() * plane +
           std::uint64_t{8} * shape.places + sizeof(float) * shape.factors;
}

std::uint32_t version_of(const CommitTableShape& shape) {
    return first_version + (shape.places == 0 ? 0 : several_drives) +
           (shape.factors == 0 ? 0 : factored_moments);
}

std::uint64_t hash_of(std::span<const std::byte> table) {
    const auto hashed = table.subspan(hashed_from);
    return XXH3_64bits(hashed.data(), hashed.size());
}

void check_table(const CommitTable& table, const CommitTableShape& shape) {
    if (shape.tiles > most_tiles)
        throw std::invalid_argument(fmt::format(
            "a commit table has {} tiles; at most {} are possible", shape.tiles, most_tiles));
    for (const auto plane : table.stored) {
        const auto& [copies, checksums] = table.planes[index_of(plane)];
        if (copies.size() != shape.tiles || checksums.size() != shape.tiles)
            throw std::invalid_argument(fmt::format(
                "commit table, plane {}: {} copies and {} checksums, but the table has {} tiles",
                plane_name(plane), copies.size(), checksums.size(), shape.tiles));
        if (std::ranges::any_of(copies, [](std::uint8_t copy) { return copy > 1; }))
            throw std::invalid_argument(fmt::format(
                "commit table, plane {}: a copy is neither 0 nor 1", plane_name(plane)));
    }
    if (table.client_state.size() > CommitTable::client_state_limit_bytes)
        throw std::invalid_argument(
            fmt::format("the client state of a commit has {} bytes; at most {} are kept",
                        table.client_state.size(), CommitTable::client_state_limit_bytes));
}

[[noreturn]] void damaged(std::string_view what) {
    throw std::runtime_error(fmt::format("the commit table is damaged: {}", what));
}

struct Header {
    std::uint32_t version = 0;
    std::uint32_t planes = 0;
    std::uint64_t length = 0;
    RunId run;
    std::uint64_t sequence = 0;
    std::uint64_t iteration = 0;
    std::uint64_t update = 0;
    std::uint64_t tiles = 0;
    std::uint32_t tensors = 0;
    std::uint32_t client_bytes = 0;
};

Header read_header(detail::ByteReader& reader) {
    Header header;
    header.version = reader.get<std::uint32_t>();
    header.planes = reader.get<std::uint32_t>();
    header.length = reader.get<std::uint64_t>();
    header.run = reader.get<RunId>();
    header.sequence = reader.get<std::uint64_t>();
    header.iteration = reader.get<std::uint64_t>();
    header.update = reader.get<std::uint64_t>();
    header.tiles = reader.get<std::uint64_t>();
    header.tensors = reader.get<std::uint32_t>();
    header.client_bytes = reader.get<std::uint32_t>();
    return header;
}

/// Everything the body's sizes rest on is checked here, before memory is taken for it.
void check_header(const Header& header, std::size_t found_bytes, const RunId& run,
                  const CommitTableShape& shape) {
    if (header.version != version_of(shape))
        throw std::runtime_error(
            fmt::format("the commit table has format version {}; this Spillway reads {}",
                        header.version, version_of(shape)));
    if (header.run != run)
        throw std::runtime_error(fmt::format("the commit table belongs to run {}, not to run {}",
                                             header.run.text(), run.text()));
    if (header.planes != shape.planes.bits())
        damaged(fmt::format("it has the planes {:#x}, needed are {:#x}", header.planes,
                            shape.planes.bits()));
    if (header.tiles != shape.tiles || header.tensors != shape.tensors)
        throw std::runtime_error(
            fmt::format("the commit table is of {} tiles and {} tensors; the run has {} and {}",
                        header.tiles, header.tensors, shape.tiles, shape.tensors));
    if (header.tiles > most_tiles)
        damaged(
            fmt::format("it claims {} tiles, at most {} are possible", header.tiles, most_tiles));
    if (header.client_bytes > CommitTable::client_state_limit_bytes)
        damaged(fmt::format("its client state claims {} bytes, at most {} are possible",
                            header.client_bytes, CommitTable::client_state_limit_bytes));
    const auto needed = fixed_bytes(shape) + header.client_bytes;
    if (header.length != needed || found_bytes != needed)
        damaged(fmt::format("it has {} bytes and claims {}, needed are {}", found_bytes,
                            header.length, needed));
}

PlaneTable read_plane(detail::ByteReader& reader, std::uint64_t tiles) {
    PlaneTable plane;
    plane.copies.resize(tiles);
    plane.checksums.resize(tiles);
    reader.get_bytes(std::as_writable_bytes(std::span(plane.copies)));
    reader.pad(8);
    reader.get_bytes(std::as_writable_bytes(std::span(plane.checksums)));
    if (std::ranges::any_of(plane.copies, [](std::uint8_t copy) { return copy > 1; }))
        damaged("it names a copy that is neither 0 nor 1");
    return plane;
}

}  // namespace

CommitTableShape shape_of(const CommitTable& table) {
    std::uint64_t tiles = 0;
    for (const auto plane : table.stored)
        tiles = std::max<std::uint64_t>(tiles, table.planes[index_of(plane)].checksums.size());
    return {tiles, static_cast<std::uint32_t>(table.tensor_steps.size()), table.stored,
            table.places.size(), table.factors.size()};
}

std::size_t table_capacity_bytes(const CommitTableShape& shape) {
    if (shape.tiles > most_tiles)
        throw std::invalid_argument(
            fmt::format("a commit table for {} tiles is asked for; at most {} are possible",
                        shape.tiles, most_tiles));
    return round_up(fixed_bytes(shape) + CommitTable::client_state_limit_bytes, page_bytes);
}

std::size_t serialise(const CommitTable& table, const RunId& run, std::span<std::byte> out) {
    const auto shape = shape_of(table);
    check_table(table, shape);
    const std::uint64_t length = fixed_bytes(shape) + table.client_state.size();
    if (out.size() < length)
        throw std::invalid_argument(
            fmt::format("a commit table of {} bytes does not fit the {} bytes given for it", length,
                        out.size()));
    detail::ByteWriter writer(out);
    writer.put(magic);
    writer.put(std::uint64_t{0});  // the hash, once the rest is there
    writer.put(version_of(shape));
    writer.put(table.stored.bits());
    writer.put(length);
    writer.put(run);
    writer.put(table.sequence);
    writer.put(table.iteration);
    writer.put(table.update);
    writer.put(shape.tiles);
    writer.put(shape.tensors);
    writer.put(static_cast<std::uint32_t>(table.client_state.size()));
    writer.put_bytes(std::as_bytes(std::span(table.tensor_steps)));
    for (const auto id : table.stored) {
        const auto& plane = table.planes[index_of(id)];
        writer.put_bytes(std::as_bytes(std::span(plane.copies)));
        writer.pad(8);
        writer.put_bytes(std::as_bytes(std::span(plane.checksums)));
    }
    writer.put_bytes(std::as_bytes(std::span(table.places)));
    writer.put_bytes(std::as_bytes(std::span(table.factors)));
    writer.put_bytes(std::as_bytes(std::span(table.client_state)));
    const std::uint64_t hash = hash_of(out.first(length));
    std::memcpy(out.data() + hash_offset, &hash, sizeof hash);
    std::ranges::fill(out.subspan(length), std::byte{0});
    return length;
}

CommitTable parse_table(std::span<const std::byte> bytes, const RunId& run,
                        const CommitTableShape& shape) {
    if (bytes.size() < header_bytes)
        damaged(
            fmt::format("it has {} bytes, its header alone takes {}", bytes.size(), header_bytes));
    detail::ByteReader reader(bytes);
    if (reader.get<Magic>() != magic)
        damaged("it does not start as a commit table does");
    if (const auto stored = reader.get<std::uint64_t>(), found = hash_of(bytes); stored != found)
        damaged(fmt::format("its checksum is {:016x}, needed is {:016x}", found, stored));
    const auto header = read_header(reader);
    check_header(header, bytes.size(), run, shape);

    CommitTable table;
    table.sequence = header.sequence;
    table.iteration = header.iteration;
    table.update = header.update;
    table.tensor_steps.resize(header.tensors);
    reader.get_bytes(std::as_writable_bytes(std::span(table.tensor_steps)));
    table.stored = shape.planes;
    for (const auto plane : table.stored)
        table.planes[index_of(plane)] = read_plane(reader, header.tiles);
    table.places.resize(shape.places);
    reader.get_bytes(std::as_writable_bytes(std::span(table.places)));
    table.factors.resize(shape.factors);
    reader.get_bytes(std::as_writable_bytes(std::span(table.factors)));
    table.client_state.resize(header.client_bytes);
    reader.get_bytes(std::as_writable_bytes(std::span(table.client_state)));
    return table;
}

}  // namespace spillway::offload
