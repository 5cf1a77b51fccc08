// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/links.h"

#include <cerrno>
#include <system_error>

namespace spillway::nvme {

namespace fs = std::filesystem;

fs::path behind_links(const fs::path& path) {
    constexpr int most_links = 40;  // as the kernel follows
    auto behind = fs::absolute(path);
    std::error_code ignored;
    for (int links = 0; fs::is_symlink(behind, ignored); ++links) {
        if (links == most_links)
            throw std::system_error(ELOOP, std::generic_category(),
                                    path.string() + " is a link to a link without end");
        behind = behind.parent_path() / fs::read_symlink(behind);
    }
    return behind;
}

}  // namespace spillway::nvme
