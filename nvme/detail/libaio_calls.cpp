// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/libaio_calls.h"

#include <array>
#include <cerrno>
#include <string>
#include <system_error>

#include <dlfcn.h>
#include <fmt/format.h>

namespace spillway::nvme::detail {

namespace {

template <class Function>
void find(const std::shared_ptr<void>& library, const char* library_name, const char* name,
          Function*& into) {
    into = reinterpret_cast<Function*>(::dlsym(library.get(), name));
    if (into == nullptr)
        throw std::system_error(ENOSYS, std::generic_category(),
                                fmt::format("{} has no function {}", library_name, name));
}

LibaioCalls calls_of(std::shared_ptr<void> library, const char* name) {
    LibaioCalls calls;
    find(library, name, "io_setup", calls.setup);
    find(library, name, "io_destroy", calls.destroy);
    find(library, name, "io_submit", calls.submit);
    find(library, name, "io_getevents", calls.get_events);
    calls.library = std::move(library);
    return calls;
}

}  // namespace

LibaioCalls load_libaio(std::span<const char* const> names) {
    std::string tried;
    for (const char* const name : names) {
        if (void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))
            return calls_of(std::shared_ptr<void>(handle, ::dlclose), name);
        tried += (tried.empty() ? "" : " nor ") + std::string(name);
    }
    throw std::system_error(
        ENOENT, std::generic_category(),
        fmt::format("the library is not installed, neither {} can be loaded (package libaio1, on "
                    "newer systems libaio1t64)",
                    tried));
}

LibaioCalls load_libaio() {
    constexpr std::array names{"libaio.so.1", "libaio.so.1t64"};
    return load_libaio(names);
}

}  // namespace spillway::nvme::detail
