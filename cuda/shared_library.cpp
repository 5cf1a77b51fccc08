// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/shared_library.h"

#include <dlfcn.h>

namespace spillway::cuda {

LoadedLibrary load_library(const std::string& name) {
    std::shared_ptr<void> handle(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE),
                                 [](void* loaded) {
                                     if (loaded != nullptr)
                                         ::dlclose(loaded);
                                 });
    if (handle != nullptr)
        return {.handle = std::move(handle), .refusal = ""};
    const char* const reason = ::dlerror();
    return {.handle = nullptr,
            .refusal = reason != nullptr ? reason : "the loader gives no reason"};
}

}  // namespace spillway::cuda
