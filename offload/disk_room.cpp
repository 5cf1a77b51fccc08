// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/disk_room.h"

#include <cerrno>
#include <map>
#include <system_error>

#include <sys/stat.h>

#include "nvme/direct_file.h"
#include "offload/plan.h"

namespace spillway::offload {

void require_disk_room(std::span<const std::filesystem::path> folders, std::uint64_t needed_bytes) {
    const auto share = (needed_bytes + folders.size() - 1) / folders.size();
    std::map<dev_t, std::uint64_t> needed;
    for (const auto& named : folders) {
        auto folder = std::filesystem::absolute(named);
        while (!std::filesystem::exists(folder))
            folder = folder.parent_path();
        struct stat status = {};
        if (::stat(folder.c_str(), &status) != 0)
            throw std::system_error(errno, std::generic_category(),
                                    "cannot ask about " + folder.string());
        auto& there = needed[status.st_dev];
        there += share;
        const auto available = nvme::available_bytes(folder);
        if (there > available)
            throw PlanRefused("disk " + folder.string(), there, available,
                              "free space there, name another folder, or take a smaller model");
    }
}

}  // namespace spillway::offload
