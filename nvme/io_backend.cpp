// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/io_backend.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "nvme/detail/error_name.h"
#include "nvme/detail/libaio_backend.h"
#include "nvme/thread_backend.h"
#include "nvme/uring_backend.h"

namespace spillway::nvme {

std::vector<std::string> IoBackend::use_fixed(const FixedResources&) {
    return {};  // nothing to gain: each operation names its file and memory anyway
}

namespace {

/// Which switch of the system forbids io_uring; "" if none that can be read does.
std::string uring_switch(int error) {
    constexpr const char* path = "/proc/sys/kernel/io_uring_disabled";
    std::ifstream file(path);
    int value = 0;
    if (error != EPERM || !(file >> value) || value == 0)
        return {};
    return fmt::format("; kernel.io_uring_disabled is {}, 0 allows it", value);
}

std::string uring_refusal_text(const std::system_error& error) {
    return detail::refusal_text(error) + uring_switch(error.code().value());
}

std::unique_ptr<IoBackend> make_uring(std::size_t depth, UringOptions options) {
    try {
        return std::make_unique<UringBackend>(depth, options);
    } catch (const std::system_error& error) {
        throw std::system_error(
            error.code(),
            fmt::format("the io_uring backend does not work here, {}: let the container's seccomp "
                        "profile and kernel.io_uring_disabled allow it, raise the memlock and "
                        "open-file limits, or choose the backend `threads` or `auto`",
                        uring_refusal_text(error)));
    }
}

std::unique_ptr<IoBackend> make_libaio(std::size_t depth) {
    try {
        return std::make_unique<detail::LibaioBackend>(depth);
    } catch (const std::system_error& error) {
        throw std::system_error(
            error.code(), fmt::format("the libaio backend does not work here, {}: remove what "
                                      "stands in the way, or choose the backend `threads` or "
                                      "`auto`",
                                      detail::refusal_text(error)));
    }
}

/// The first that works; io_uring_refusal() and libaio_refusal() tell why the others did not.
std::unique_ptr<IoBackend> make_best(std::size_t depth, UringOptions options) {
    try {
        return std::make_unique<UringBackend>(depth, options);
    } catch (const std::system_error&) {
    }
    try {
        return std::make_unique<detail::LibaioBackend>(depth);
    } catch (const std::system_error&) {
    }
    return std::make_unique<ThreadBackend>(depth);
}

/// In the order of BackendKind.
constexpr std::array<std::string_view, 4> names{"auto", "io_uring", "libaio", "threads"};

}  // namespace

std::span<const std::string_view> backend_names() noexcept {
    return names;
}

std::optional<BackendKind> backend_kind(std::string_view name) noexcept {
    const auto found = std::ranges::find(names, name);
    if (found == names.end())
        return std::nullopt;
    return static_cast<BackendKind>(found - names.begin());
}

std::unique_ptr<IoBackend> make_backend(BackendKind kind, std::size_t depth, UringOptions uring) {
    if (depth == 0)
        throw std::invalid_argument("an I/O backend needs a depth of at least 1; it was given 0");
    switch (kind) {
        case BackendKind::automatic:
            return make_best(depth, uring);
        case BackendKind::io_uring:
            return make_uring(depth, uring);
        case BackendKind::libaio:
            return make_libaio(depth);
        case BackendKind::threads:
            break;
    }
    return std::make_unique<ThreadBackend>(depth);
}

std::string io_uring_refusal() {
    try {
        const UringBackend probe(1);
        return {};
    } catch (const std::system_error& error) {
        return uring_refusal_text(error);
    }
}

std::string libaio_refusal() {
    try {
        const detail::LibaioBackend probe(1);
        return {};
    } catch (const std::system_error& error) {
        return detail::refusal_text(error);
    }
}

std::string automatic_choice() {
    const std::string uring = io_uring_refusal();
    if (uring.empty())
        return "io_uring";
    const std::string libaio = libaio_refusal();
    if (libaio.empty())
        return fmt::format("libaio, since io_uring cannot be used: {}", uring);
    return fmt::format("threads, since neither io_uring ({}) nor libaio ({}) can be used", uring,
                       libaio);
}

}  // namespace spillway::nvme
