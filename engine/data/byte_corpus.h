// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "engine/data/data_file.h"
#include "engine/data/held_out_split.h"

namespace spillway::engine {

/// Files of text as one stream of byte tokens, 0 to 255, one file after the other. Only the windows
/// asked for are read; nothing is kept in memory. Training and held-out windows share no byte (see
/// HeldOutSplit). A window of a sequence of S tokens has S + 1: inputs and targets, one apart.
/// Thread-safe.
class ByteCorpus {
  public:
    /// Throws std::invalid_argument that names the file (see DataFile), or the bytes there are and
    /// the bytes needed where the files are too short for one sequence of `sequence_tokens`.
    explicit ByteCorpus(const std::vector<std::filesystem::path>& files,
                        std::size_t sequence_tokens = 1);

    [[nodiscard]] std::uint64_t size_bytes() const noexcept { return begins_.back(); }

    /// Fills `window`, S + 1 tokens, with a sequence for training. Which one is a pure function of
    /// the data, S, `seed`, `iteration` and `sequence` (its number in the step): with mix the step
    /// and finaliser of splitmix64, h = mix(mix(mix(mix("data") + seed) + iteration) + sequence),
    /// and W the number of training windows, it is the window floor(h W / 2^64). Throws as the
    /// constructor if there is none, and as DataFile::read().
    void training_sequence(std::uint64_t seed, std::uint64_t iteration, std::uint64_t sequence,
                           std::span<std::int32_t> window) const;
    /// The sequences 0 to `batch` - 1 of a step, one behind the other: `batch` x (S + 1) tokens.
    void training_window(std::uint64_t seed, std::uint64_t iteration, std::size_t batch,
                         std::size_t sequence_tokens, std::span<std::int32_t> windows) const;

    /// Held-out windows lie side by side: none shares a byte with another.
    [[nodiscard]] std::uint64_t held_out_windows(std::size_t sequence_tokens) const noexcept;
    /// Fills `window`, S + 1 tokens, with the held-out one of that number; past the last it begins
    /// again with the first. Throws as training_sequence().
    void held_out_sequence(std::uint64_t index, std::span<std::int32_t> window) const;
    /// The held-out sequences `pass` x `batch` and so on, one behind the other.
    void held_out_window(std::uint64_t pass, std::size_t batch, std::size_t sequence_tokens,
                         std::span<std::int32_t> windows) const;

    /// XXH3-64 in hex of the stream's size (64-bit little-endian) and its bytes: other data has
    /// another one, other cuts into files do not matter. Reads everything once, 1 MiB at a time.
    [[nodiscard]] std::string fingerprint() const;

  private:
    void require_window(std::size_t length) const;
    void read(std::uint64_t offset_bytes, std::span<std::byte> out) const;
    void read_tokens(std::uint64_t offset_bytes, std::span<std::int32_t> out) const;

    std::vector<DataFile> files_;
    std::vector<std::uint64_t> begins_;  ///< of each file in the stream, and the stream's end
    HeldOutSplit split_;
};

}  // namespace spillway::engine
