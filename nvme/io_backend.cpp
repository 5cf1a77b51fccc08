// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/io_backend.h"

#include <stdexcept>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "nvme/detail/error_name.h"
#include "nvme/thread_backend.h"
#include "nvme/uring_backend.h"

namespace spillway::nvme {

namespace {

std::string refusal_text(const std::system_error& error) {
    const std::string text = error.what();
    // what() ends in the code's message, which error_name gives with the errno's name.
    const std::string call = text.substr(0, text.rfind(": "));
    return fmt::format("{} ({})", detail::error_name(error.code().value()), call);
}

std::unique_ptr<IoBackend> make_uring(std::size_t depth) {
    try {
        return std::make_unique<UringBackend>(depth);
    } catch (const std::system_error& error) {
        throw std::system_error(
            error.code(),
            fmt::format("the io_uring backend does not work here, {}: let the container's seccomp "
                        "profile and kernel.io_uring_disabled allow it, raise the memlock and "
                        "open-file limits, or choose the backend `threads` or `auto`",
                        refusal_text(error)));
    }
}

}  // namespace

std::unique_ptr<IoBackend> make_backend(BackendKind kind, std::size_t depth) {
    if (depth == 0)
        throw std::invalid_argument("an I/O backend needs a depth of at least 1; it was given 0");
    if (kind == BackendKind::io_uring)
        return make_uring(depth);
    if (kind == BackendKind::automatic) {
        try {
            return std::make_unique<UringBackend>(depth);
        } catch (const std::system_error&) {
            // io_uring_refusal() tells whoever wants to know; threads do the same work.
            return std::make_unique<ThreadBackend>(depth);
        }
    }
    return std::make_unique<ThreadBackend>(depth);
}

std::string io_uring_refusal() {
    try {
        const UringBackend probe(1);
        return {};
    } catch (const std::system_error& error) {
        return refusal_text(error);
    }
}

}  // namespace spillway::nvme
