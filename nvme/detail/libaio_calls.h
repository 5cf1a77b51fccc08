// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>
#include <span>

#include <linux/aio_abi.h>
#include <time.h>

namespace spillway::nvme::detail {

/// What the libaio backend needs of the library, as pointers: the program starts without the
/// library, and tests play a kernel that refuses. Each returns a count or 0, or a negated errno.
struct LibaioCalls {
    int (*setup)(int events, aio_context_t* context) = nullptr;
    int (*destroy)(aio_context_t context) = nullptr;
    int (*submit)(aio_context_t context, long count, iocb** operations) = nullptr;
    int (*get_events)(aio_context_t context, long least, long most, io_event* events,
                      timespec* time_limit) = nullptr;
    std::shared_ptr<void> library;  ///< keeps it loaded as long as the pointers are used
};

/// Loads the first library of `names` that is there. Throws std::system_error (ENOENT, or ENOSYS
/// where a library lacks a function) naming what was looked for.
[[nodiscard]] LibaioCalls load_libaio(std::span<const char* const> names);

/// From the names that distributions give the library.
[[nodiscard]] LibaioCalls load_libaio();

}  // namespace spillway::nvme::detail
