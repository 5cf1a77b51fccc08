// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cerrno>
#include <csignal>
#include <system_error>

#include <sys/resource.h>

namespace spillway::testing {

/// Caps what the process may have of a resource while it lives: the size of files (RLIMIT_FSIZE),
/// as a disk that is full, or how many are open (RLIMIT_NOFILE).
class TightLimit {
  public:
    using Resource = decltype(RLIMIT_FSIZE);
    TightLimit(Resource resource, rlim_t most)
        : resource_(resource), former_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
        if (::getrlimit(resource_, &former_) != 0)
            throw std::system_error(errno, std::generic_category(), "getrlimit");
        const rlimit tight{most, former_.rlim_max};
        if (::setrlimit(resource_, &tight) != 0)
            throw std::system_error(errno, std::generic_category(), "setrlimit");
    }
    ~TightLimit() {
        static_cast<void>(::setrlimit(resource_, &former_));
        std::signal(SIGXFSZ, former_handler_);
    }
    TightLimit(const TightLimit&) = delete;
    TightLimit& operator=(const TightLimit&) = delete;

  private:
    Resource resource_;
    void (*former_handler_)(int);
    rlimit former_{};
};

}  // namespace spillway::testing
