// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>

#include <sys/fsuid.h>
#include <unistd.h>

namespace spillway::testing {

/// While it lives, files are opened by the calling thread as an unprivileged user would open them,
/// also when the tests run as root. Changes nothing for another user.
class AsNobody {
  public:
    AsNobody() : was_root_(::geteuid() == 0) {
        if (was_root_)
            ::setfsuid(nobody);
    }
    ~AsNobody() {
        if (was_root_)
            ::setfsuid(0);
    }
    AsNobody(const AsNobody&) = delete;
    AsNobody& operator=(const AsNobody&) = delete;

    [[nodiscard]] bool can_read(const std::filesystem::path& folder) const {
        std::error_code error;
        const std::filesystem::directory_iterator listing(folder, error);
        return !error;
    }

  private:
    static constexpr uid_t nobody = 65534;
    bool was_root_;
};

}  // namespace spillway::testing
