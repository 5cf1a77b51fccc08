// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/cufile_calls.h"

#include <array>
#include <cerrno>
#include <string>
#include <system_error>

#include <dlfcn.h>
#include <fmt/format.h>

namespace spillway::nvme::detail {

namespace {

template <class Function>
void find(void* library, const char* library_name, const char* name, Function*& into) {
    into = reinterpret_cast<Function*>(::dlsym(library, name));
    if (into == nullptr)
        throw std::system_error(ENOSYS, std::generic_category(),
                                fmt::format("{} has no function {}", library_name, name));
}

CuFileCalls calls_of(void* library, const char* name) {
    CuFileCalls calls;
    find(library, name, "cuFileDriverOpen", calls.open_driver);
    find(library, name, "cuFileDriverGetProperties", calls.get_properties);
    find(library, name, "cuFileHandleRegister", calls.register_handle);
    find(library, name, "cuFileHandleDeregister", calls.deregister_handle);
    find(library, name, "cuFileBufRegister", calls.register_buffer);
    find(library, name, "cuFileBufDeregister", calls.deregister_buffer);
    find(library, name, "cuFileRead", calls.read);
    find(library, name, "cuFileWrite", calls.write);
    return calls;
}

}  // namespace

CuFileCalls load_cufile(std::span<const char* const> names) {
    std::string tried;
    for (const char* const name : names) {
        if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE))
            return calls_of(library, name);
        tried += (tried.empty() ? "" : " nor ") + std::string(name);
    }
    throw std::system_error(ENOENT, std::generic_category(),
                            fmt::format("cuFile is not installed, {} cannot be loaded (part of the "
                                        "CUDA toolkit, package libcufile)",
                                        tried));
}

CuFileCalls load_cufile() {
    if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == nullptr)
        throw std::system_error(ENOENT, std::generic_category(),
                                "there is no CUDA driver, libcuda.so.1 cannot be loaded");
    constexpr std::array names{"libcufile.so.0"};
    return load_cufile(names);
}

CuFileMeaning meaning_of_cufile(int code) noexcept {
    switch (code) {
        case 5001:
        case 5033:
            return {EOPNOTSUPP, "cuFile: the nvidia-fs driver is not loaded"};
        case 5004:
        case 5005:
            return {EOPNOTSUPP, "cuFile: the nvidia-fs driver has another version"};
        case 5007:
        case 5009:
            return {EOPNOTSUPP, "cuFile: this platform or GPU has no GPUDirect Storage"};
        case 5008:
        case 5018:
        case 5034:
        case 5049:
            return {EOPNOTSUPP, "cuFile: this file or file system has no GPUDirect Storage"};
        case 5011:
            return {EIO, "cuFile: the CUDA driver failed"};
        case 5012:
        case 5013:
        case 5014:
        case 5016:
        case 5017:
        case 5024:
            return {EFAULT, "cuFile: the address is not GPU memory of that length"};
        case 5015:
        case 5047:
            return {EINVAL, "cuFile: the thread has another CUDA context than the memory"};
        case 5019:
        case 5020:
            return {EINVAL, "cuFile: the file is not open for direct I/O"};
        case 5025:
            return {EACCES, "cuFile: access to the driver or the file is denied"};
        case 5029:
            return {ENODEV, "cuFile: there is no GPU"};
        case 5036:
        case 5043:
            return {ENOMEM, "cuFile: memory could not be had or pinned"};
        default:
            return {EIO, "cuFile failed"};
    }
}

}  // namespace spillway::nvme::detail
