// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <unistd.h>

namespace spillway::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/// A sanitizer keeps freed memory for a while, and maps its own.
inline constexpr bool memory_is_own = false;
#else
inline constexpr bool memory_is_own = true;
#endif

/// What a process could leak.
struct Holdings {
    std::ptrdiff_t descriptors = entries("/proc/self/fd");
    std::ptrdiff_t threads = entries("/proc/self/task");
    std::ptrdiff_t mappings = 0;
    std::ptrdiff_t resident_bytes = 0;
    std::ptrdiff_t locked_bytes = 0;  ///< by mlock(), or pinned for a device or a ring

    Holdings() {
        std::ifstream maps("/proc/self/maps");
        mappings = std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
        std::ifstream memory("/proc/self/statm");
        memory >> resident_bytes >> resident_bytes;
        resident_bytes *= ::sysconf(_SC_PAGESIZE);
        std::ifstream status("/proc/self/status");
        for (std::string line; std::getline(status, line);) {
            std::istringstream words(line);
            std::string name;
            std::ptrdiff_t kibibytes = 0;
            if (words >> name >> kibibytes && (name == "VmLck:" || name == "VmPin:"))
                locked_bytes += kibibytes * 1024;
        }
    }

  private:
    static std::ptrdiff_t entries(const char* folder) {
        return std::distance(std::filesystem::directory_iterator(folder), {});
    }
};

}  // namespace spillway::testing
