// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/control_groups.h"

#include <fstream>
#include <string>

#include <fmt/format.h>

namespace spillway::engine {

std::vector<ControlGroup> control_groups(const std::filesystem::path& root,
                                         std::string_view controller) {
    std::vector<ControlGroup> groups;
    const auto hierarchies = root / "sys/fs/cgroup";
    std::ifstream lines(root / "proc/self/cgroup");
    for (std::string line; std::getline(lines, line);) {
        // "4:cpu,cpuacct:/group" is version 1, "0::/group" version 2.
        const auto first = line.find(':');
        const auto second = line.find(':', first == std::string::npos ? first : first + 1);
        if (second == std::string::npos)
            continue;
        const auto controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const std::filesystem::path group = line.substr(second + 1);
        if (controllers == ",,")
            groups.push_back({GroupVersion::two, hierarchies, group});
        else if (controllers.find(fmt::format(",{},", controller)) != std::string::npos)
            groups.push_back({GroupVersion::one, hierarchies / controller, group});
    }
    return groups;
}

}  // namespace spillway::engine
