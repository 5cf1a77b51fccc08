// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "offload/io_options.h"
#include "offload/windows.h"

namespace spillway::engine {

/// All that changes how fast a run goes, changes no bit of its result, and has no one best value on
/// every machine. 0: not set, which is the default that the comment names.
struct Tuning {
    std::uint64_t chunk_bytes = 0;     ///< of an fp32 plane of a chunk; by the plan's rule
    std::uint64_t update_window = 0;   ///< chunks of each drive under way in an update; as Windows
    std::uint64_t weight_window = 0;   ///< chunks of weights read ahead; as Windows
    std::uint64_t io_block_bytes = 0;  ///< of an operation of each drive, at most; as DriveIo, or
                                       ///< as `bench storage --tune` found for it
    std::uint64_t io_depth = 0;        ///< operations in flight on each drive; as well
    std::uint64_t update_threads = 0;  ///< that update beside forward and backward; all of them

    friend bool operator==(const Tuning&, const Tuning&) = default;
};

/// One field of Tuning.
struct TuningField {
    std::string_view option;  ///< its flag, without "--"
    std::string_view key;     ///< in JSON
    std::uint64_t Tuning::*member;
};
inline constexpr std::array tuning_fields{
    TuningField{"chunk-size", "chunk_bytes", &Tuning::chunk_bytes},
    TuningField{"update-window", "update_window", &Tuning::update_window},
    TuningField{"weight-window", "weight_window", &Tuning::weight_window},
    TuningField{"io-block", "io_block_bytes", &Tuning::io_block_bytes},
    TuningField{"io-depth", "io_depth", &Tuning::io_depth},
    TuningField{"update-threads", "update_threads", &Tuning::update_threads},
};

/// What `first` sets, and what `second` sets beside that.
[[nodiscard]] Tuning combined(const Tuning& first, const Tuning& second) noexcept;

[[nodiscard]] offload::Windows windows_of(const Tuning& tuning) noexcept;
/// `io`, changed where `tuning` says so.
[[nodiscard]] offload::DriveIo drive_io_of(const Tuning& tuning, offload::DriveIo io) noexcept;
/// Of a run with so many threads.
[[nodiscard]] std::size_t update_threads_of(const Tuning& tuning, std::size_t threads) noexcept;

inline constexpr std::uint64_t most_io_depth = 4096;
inline constexpr std::uint64_t most_io_block_bytes = std::uint64_t{1} << 30;

}  // namespace spillway::engine
