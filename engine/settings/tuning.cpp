// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/tuning.h"

namespace spillway::engine {

Tuning combined(const Tuning& first, const Tuning& second) noexcept {
    auto all = first;
    for (const auto& field : tuning_fields) {
        if (all.*field.member == 0)
            all.*field.member = second.*field.member;
    }
    return all;
}

offload::Windows windows_of(const Tuning& tuning) noexcept {
    offload::Windows windows;
    if (tuning.update_window != 0)
        windows.update_slots = tuning.update_window;
    if (tuning.weight_window != 0)
        windows.weight_buffers = tuning.weight_window;
    return windows;
}

offload::DriveIo drive_io_of(const Tuning& tuning, offload::DriveIo io) noexcept {
    if (tuning.io_block_bytes != 0)
        io.operation_bytes = tuning.io_block_bytes;
    if (tuning.io_depth != 0)
        io.depth = tuning.io_depth;
    return io;
}

std::size_t update_threads_of(const Tuning& tuning, std::size_t threads) noexcept {
    return tuning.update_threads != 0 ? tuning.update_threads : threads;
}

}  // namespace spillway::engine
