// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>

namespace spillway::engine {

/// Which bytes of a stream are for training and which are held out, by the stream's size alone.
///
/// The stream is cut into blocks of B bytes, B the largest power of two that is at most
/// total / 64, and at most 64 KiB. Of each 16 whole blocks the last is held out; what is behind the
/// last group of 16 is for training. So the stretches for training are runs of 15 blocks and one
/// last run that may be shorter or empty. A window is a run of `length` bytes that lies in one
/// stretch or in one held-out block: windows of the two kinds share no byte.
class HeldOutSplit {
  public:
    static constexpr std::uint64_t longest_block_bytes = 64 * 1024;
    static constexpr std::uint64_t blocks_per_group = 16;
    static constexpr std::uint64_t least_blocks = 64;

    explicit HeldOutSplit(std::uint64_t total_bytes) noexcept;

    [[nodiscard]] std::uint64_t block_bytes() const noexcept { return block_bytes_; }
    /// The shortest stream with a held-out window of `length` bytes, at least 2; 0 if no stream has
    /// one.
    [[nodiscard]] static std::uint64_t least_total_bytes(std::size_t length) noexcept;

    /// How many places a training window of `length` bytes may start at.
    [[nodiscard]] std::uint64_t training_windows(std::size_t length) const noexcept;
    /// Where the window `index` < training_windows(length) starts; increasing in `index`.
    [[nodiscard]] std::uint64_t training_offset(std::uint64_t index,
                                                std::size_t length) const noexcept;

    /// How many windows of `length` bytes the held-out blocks hold side by side.
    [[nodiscard]] std::uint64_t held_out_windows(std::size_t length) const noexcept;
    /// Where the window `index` < held_out_windows(length) starts; increasing in `index`.
    [[nodiscard]] std::uint64_t held_out_offset(std::uint64_t index,
                                                std::size_t length) const noexcept;

  private:
    [[nodiscard]] std::uint64_t group_bytes() const noexcept {
        return blocks_per_group * block_bytes_;
    }

    std::uint64_t total_bytes_;
    std::uint64_t block_bytes_;
    std::uint64_t groups_;  ///< whole ones
};

}  // namespace spillway::engine
