// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/nearby_library.h"

#include <filesystem>
#include <system_error>

#include <dlfcn.h>
#include <fmt/format.h>

#include "cuda/shared_library.h"

namespace spillway::cuda {
namespace {

using VersionFunction = int (*)(int*);

/// Both libraries have a function that writes a number and returns 0.
int version_number(void* library, const char* symbol) {
    const auto function = reinterpret_cast<VersionFunction>(::dlsym(library, symbol));
    int number = 0;
    return function != nullptr && function(&number) == 0 ? number : 0;
}

NearbyLibrary open(const std::string& library, const char* symbol, int major_unit, int minor_unit) {
    const auto loaded = load_library(library);
    if (loaded.handle == nullptr)
        return {.version = "", .refusal = loaded.refusal};
    const int number = version_number(loaded.handle.get(), symbol);
    if (number == 0)
        return {.version = "unknown", .refusal = ""};
    return {.version = fmt::format("{}.{}.{}", number / major_unit,
                                   number % major_unit / minor_unit, number % minor_unit),
            .refusal = ""};
}

}  // namespace

NearbyLibrary inspect_nccl(const std::string& library) {
    return open(library, "ncclGetVersion", 10000, 100);
}

NearbyLibrary inspect_cufile(const std::string& library, const std::string& kernel_module) {
    auto found = open(library, "cuFileGetVersion", 1000, 10);
    std::error_code unreadable;
    if (found.refusal.empty() && !std::filesystem::exists(kernel_module, unreadable))
        found.refusal = fmt::format(
            "the kernel has no nvidia-fs ({} is not there): files would pass through host memory",
            kernel_module);
    return found;
}

}  // namespace spillway::cuda
