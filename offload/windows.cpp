// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/windows.h"

#include <stdexcept>

#include <fmt/format.h>

namespace spillway::offload {
namespace {

void check(const char* name, std::size_t chunks) {
    if (chunks == 0 || chunks > most_window)
        throw std::invalid_argument(
            fmt::format("a {} window of {} chunks: it must be 1 to {}", name, chunks, most_window));
}

}  // namespace

void check_windows(const Windows& windows) {
    check("update", windows.update_slots);
    check("weight", windows.weight_buffers);
}

}  // namespace spillway::offload
