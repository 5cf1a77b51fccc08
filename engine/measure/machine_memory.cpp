// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/machine_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>

#include <sched.h>

#include "engine/measure/control_groups.h"

namespace spillway::engine {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> read_count(const fs::path& path) {
    std::ifstream file(path);
    std::uint64_t value = 0;
    if (file >> value)
        return value;
    return std::nullopt;
}

/// The number behind `key` in a file of "key number" lines; nothing if there is none.
std::optional<std::uint64_t> read_keyed(const fs::path& path, const std::string& key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name;
        std::uint64_t value = 0;
        if (words >> name >> value && name == key)
            return value;
    }
    return std::nullopt;
}

struct GroupFiles {
    const char* limit;
    const char* usage;
    const char* droppable;  ///< key in memory.stat
};
constexpr GroupFiles version_1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                               "total_inactive_file"};
constexpr GroupFiles version_2{"memory.max", "memory.current", "inactive_file"};

/// "max" in version 2, and files that are missing, are no limit.
void apply_group(const fs::path& folder, const GroupFiles& files, AvailableMemory& available) {
    const auto limit = read_count(folder / files.limit);
    const auto usage = read_count(folder / files.usage);
    if (!limit || !usage)
        return;
    const auto droppable = read_keyed(folder / "memory.stat", files.droppable).value_or(0);
    const auto used = *usage - std::min(*usage, droppable);
    const auto left = *limit - std::min(*limit, used);
    if (left < available.bytes)
        available = {left, folder.string()};
}

void apply_groups(const fs::path& mount, fs::path group, const GroupFiles& files,
                  AvailableMemory& available) {
    // In a container the path may be the host's and not exist here: its own group is the mount.
    for (group = group.relative_path(); !group.empty(); group = group.parent_path())
        apply_group(mount / group, files, available);
    apply_group(mount, files, available);
}

std::uint64_t status_kib(const fs::path& root, const std::string& key) {
    const auto kib = read_keyed(root / "proc/self/status", key);
    if (!kib)
        throw std::runtime_error("/proc/self/status has no " + key);
    return *kib;
}

}  // namespace

AvailableMemory available_memory(const fs::path& root) {
    const auto kib = read_keyed(root / "proc/meminfo", "MemAvailable:");
    if (!kib)
        throw std::runtime_error("/proc/meminfo has no MemAvailable: give --host-mem");
    AvailableMemory available{*kib * 1024, "the machine"};
    for (const auto& [version, hierarchy, group] : control_groups(root, "memory"))
        apply_groups(hierarchy, group, version == GroupVersion::one ? version_1 : version_2,
                     available);
    return available;
}

std::size_t memory_margin(std::size_t available_bytes) noexcept {
    constexpr std::size_t least = std::size_t{256} << 20;
    constexpr std::size_t most = std::size_t{4} << 30;
    return std::clamp(available_bytes / 10, least, most);
}

ResidentMemory resident_memory(const fs::path& root) {
    return {status_kib(root, "VmRSS:") * 1024, status_kib(root, "VmHWM:") * 1024};
}

std::size_t usable_processors() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (::sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
}

}  // namespace spillway::engine
