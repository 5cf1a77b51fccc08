// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace spillway::engine {

enum class GroupVersion { one, two };

/// A control group that this process is in.
struct ControlGroup {
    GroupVersion version = GroupVersion::two;
    std::filesystem::path hierarchy;  ///< where that of the controller is mounted, below `root`
    std::filesystem::path group;      ///< in it, as the kernel names it: "/job"
};

/// Those that `controller` ("memory") may limit it in, of version 1 or 2: at most one of each as a
/// rule, and none where the kernel does not say. `root` is "/" but in tests.
[[nodiscard]] std::vector<ControlGroup> control_groups(const std::filesystem::path& root,
                                                       std::string_view controller);

}  // namespace spillway::engine
