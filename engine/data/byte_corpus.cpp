// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/data/byte_corpus.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <new>
#include <stdexcept>

#include <fmt/format.h>
#include <xxhash.h>

namespace spillway::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "hashes are defined on such bytes");

std::vector<DataFile> open_all(const std::vector<std::filesystem::path>& paths) {
    if (paths.empty())
        throw std::invalid_argument("data: no file is named; name at least one");
    std::vector<DataFile> files;
    files.reserve(paths.size());
    for (const auto& path : paths)
        files.emplace_back(path);
    return files;
}

std::vector<std::uint64_t> begins_of(const std::vector<DataFile>& files) {
    std::vector<std::uint64_t> begins{0};
    for (const auto& file : files)
        begins.push_back(begins.back() + file.size_bytes());
    return begins;
}

/// The step and the finaliser of splitmix64 (Steele, Lea & Flood 2014).
std::uint64_t mix(std::uint64_t x) noexcept {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/// Each number is added to a mixed one: close numbers end far apart, and other seeds draw other
/// windows, not the same ones in another order.
std::uint64_t window_hash(std::uint64_t seed, std::uint64_t iteration,
                          std::uint64_t sequence) noexcept {
    constexpr std::uint64_t purpose = 0x64617461;  // "data"
    return mix(mix(mix(mix(purpose) + seed) + iteration) + sequence);
}

/// floor(hash x count / 2^64): even to within count / 2^64.
std::uint64_t scale_hash(std::uint64_t hash, std::uint64_t count) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(static_cast<Wide>(hash) * count >> 64);
}

void require_room(std::size_t batch, std::size_t sequence_tokens, std::size_t tokens) {
    if (batch * (sequence_tokens + 1) != tokens)
        throw std::invalid_argument(
            fmt::format("data: {} tokens of room for {} windows of {} tokens", tokens, batch,
                        sequence_tokens + 1));
}

}  // namespace

ByteCorpus::ByteCorpus(const std::vector<std::filesystem::path>& files, std::size_t sequence_tokens)
    : files_(open_all(files)), begins_(begins_of(files_)), split_(begins_.back()) {
    require_window(sequence_tokens + 1);
}

void ByteCorpus::require_window(std::size_t length) const {
    if (split_.held_out_windows(length) > 0 && split_.training_windows(length) > 0)
        return;
    const auto needed = HeldOutSplit::least_total_bytes(length);
    const auto name = files_.size() == 1
                          ? fmt::format("data file {}", files_[0].path().string())
                          : fmt::format("data files {} and {} more", files_[0].path().string(),
                                        files_.size() - 1);
    if (needed == 0)
        throw std::invalid_argument(
            fmt::format("{}: a sequence of {} tokens is too long; the longest has {}", name,
                        length - 1, HeldOutSplit::longest_block_bytes - 1));
    throw std::invalid_argument(
        fmt::format("{}: too short for a sequence of {} tokens: {} bytes, at least {} are needed "
                    "to hold some out; give more data or take shorter sequences",
                    name, length - 1, size_bytes(), needed));
}

void ByteCorpus::training_sequence(std::uint64_t seed, std::uint64_t iteration,
                                   std::uint64_t sequence, std::span<std::int32_t> window) const {
    require_window(window.size());
    const std::uint64_t hash = window_hash(seed, iteration, sequence);
    const auto index = scale_hash(hash, split_.training_windows(window.size()));
    read_tokens(split_.training_offset(index, window.size()), window);
}

void ByteCorpus::training_window(std::uint64_t seed, std::uint64_t iteration, std::size_t batch,
                                 std::size_t sequence_tokens,
                                 std::span<std::int32_t> windows) const {
    require_room(batch, sequence_tokens, windows.size());
    const std::size_t length = sequence_tokens + 1;
    for (std::size_t sequence = 0; sequence < batch; ++sequence)
        training_sequence(seed, iteration, sequence, windows.subspan(sequence * length, length));
}

std::uint64_t ByteCorpus::held_out_windows(std::size_t sequence_tokens) const noexcept {
    return split_.held_out_windows(sequence_tokens + 1);
}

void ByteCorpus::held_out_sequence(std::uint64_t index, std::span<std::int32_t> window) const {
    require_window(window.size());
    const auto windows = split_.held_out_windows(window.size());
    read_tokens(split_.held_out_offset(index % windows, window.size()), window);
}

void ByteCorpus::held_out_window(std::uint64_t pass, std::size_t batch, std::size_t sequence_tokens,
                                 std::span<std::int32_t> windows) const {
    require_room(batch, sequence_tokens, windows.size());
    const std::size_t length = sequence_tokens + 1;
    for (std::size_t i = 0; i < batch; ++i)
        held_out_sequence(pass * batch + i, windows.subspan(i * length, length));
}

std::string ByteCorpus::fingerprint() const {
    struct Free {
        void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
    };
    const std::unique_ptr<XXH3_state_t, Free> state(XXH3_createState());
    if (!state)
        throw std::bad_alloc();
    const std::uint64_t size = size_bytes();
    XXH3_64bits_reset(state.get());
    XXH3_64bits_update(state.get(), &size, sizeof(size));
    std::vector<std::byte> piece(std::min<std::uint64_t>(size, 1 << 20));
    for (std::uint64_t at = 0; at < size; at += piece.size()) {
        const auto part = std::span(piece).first(std::min<std::uint64_t>(size - at, piece.size()));
        read(at, part);
        XXH3_64bits_update(state.get(), part.data(), part.size());
    }
    return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

void ByteCorpus::read(std::uint64_t offset_bytes, std::span<std::byte> out) const {
    const auto found = std::upper_bound(begins_.begin(), begins_.end(), offset_bytes);
    auto file = static_cast<std::size_t>(found - begins_.begin()) - 1;
    while (!out.empty()) {
        const auto left = begins_[file + 1] - offset_bytes;
        const auto part = out.first(std::min<std::uint64_t>(left, out.size()));
        files_[file].read(offset_bytes - begins_[file], part);
        offset_bytes += part.size();
        out = out.subspan(part.size());
        ++file;
    }
}

void ByteCorpus::read_tokens(std::uint64_t offset_bytes, std::span<std::int32_t> out) const {
    std::vector<std::byte> bytes(out.size());
    read(offset_bytes, bytes);
    std::transform(bytes.begin(), bytes.end(), out.begin(),
                   [](std::byte byte) { return std::to_integer<std::int32_t>(byte); });
}

}  // namespace spillway::engine
