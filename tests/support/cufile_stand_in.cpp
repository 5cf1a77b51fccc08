// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/cufile_stand_in.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nvme/detail/cufile_calls.h"

using spillway::nvme::detail::CuFileDescriptor;
using spillway::nvme::detail::CuFileError;
using spillway::nvme::detail::CuFileProperties;

namespace spillway::testing {

namespace {

constexpr int no_handle = 5027;
constexpr int handle_twice = 5028;
constexpr int not_direct = 5020;
constexpr int bad_value = 5022;
constexpr int memory_twice = 5023;
constexpr int memory_unknown = 5024;
constexpr int pinning_failed = 5036;

struct Mapping {
    std::size_t bytes;
    std::byte* host;
};

struct Mappings {
    std::mutex mutex;
    std::map<const std::byte*, Mapping> all;  ///< by device address

    /// Where a device range lies for the processor; null: it is none.
    std::byte* find(const std::byte* device, std::size_t bytes) {
        const std::lock_guard lock(mutex);
        const auto behind = all.upper_bound(device);
        if (behind == all.begin())
            return nullptr;
        const auto& [start, mapping] = *std::prev(behind);
        const auto offset = static_cast<std::size_t>(device - start);
        const bool inside = offset < mapping.bytes && bytes <= mapping.bytes - offset;
        return inside ? mapping.host + offset : nullptr;
    }
};

Mappings& mappings() {
    static Mappings instance;
    return instance;
}

CuFileStandIn& stand_in() {
    return CuFileStandIn::instance();
}

int descriptor_of(void* handle) {
    return static_cast<int>(reinterpret_cast<std::intptr_t>(handle)) - 1;
}

/// What cuFile would say before it moves anything; 0: all is well.
int check_transfer(void* handle, const std::byte* base, std::size_t bytes, off_t base_offset) {
    CuFileStandIn& self = stand_in();
    if (!self.descriptors.contains(descriptor_of(handle))) {
        self.faults.emplace_back("a handle that is not registered");
        return no_handle;
    }
    const auto registered = self.buffers.find(base);
    if (registered == self.buffers.end()) {
        if (base_offset != 0)
            self.faults.emplace_back("an offset into memory that is not registered");
        return 0;
    }
    ++self.transfers_from_registered;
    if (bytes > registered->second - static_cast<std::size_t>(base_offset)) {
        self.faults.emplace_back("a transfer beyond the end of registered memory");
        return memory_unknown;
    }
    return 0;
}

ssize_t transfer(void* handle, const std::byte* base, std::size_t bytes, off_t file_offset,
                 off_t base_offset, bool is_read) {
    std::optional<std::int64_t> scripted;
    {
        const std::lock_guard lock(stand_in().mutex);
        const std::size_t number = stand_in().transfers++;
        if (const int code = check_transfer(handle, base, bytes, base_offset); code != 0)
            return -code;
        if (stand_in().result)
            scripted = stand_in().result(number);
        if (scripted == -1)
            errno = stand_in().transfer_errno;
    }
    if (scripted && *scripted <= 0)
        return *scripted;
    if (scripted)
        bytes = std::min(bytes, static_cast<std::size_t>(*scripted));
    std::byte* const memory = mappings().find(base + base_offset, bytes);
    if (memory == nullptr)
        return -memory_unknown;
    const int descriptor = descriptor_of(handle);
    return is_read ? ::pread(descriptor, memory, bytes, file_offset)
                   : ::pwrite(descriptor, memory, bytes, file_offset);
}

}  // namespace

CuFileStandIn& CuFileStandIn::instance() {
    static CuFileStandIn instance;
    return instance;
}

std::string CuFileStandIn::path() {
    Dl_info info = {};
    ::dladdr(reinterpret_cast<const void*>(&CuFileStandIn::path), &info);
    return info.dli_fname;
}

void CuFileStandIn::reset() {
    const std::lock_guard lock(mutex);
    driver_code = properties_code = 0;
    status_flags = control_flags = feature_flags = 0;
    most_registered_bytes = ~std::size_t{0};
    result = nullptr;
    transfer_errno = 0;
    registered_bytes = registered_handles = transfers = transfers_from_registered = 0;
    faults.clear();
    buffers.clear();
    descriptors.clear();
}

StandInDeviceMemory::StandInDeviceMemory(std::size_t bytes) : size_bytes_(bytes) {
    void* const device =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void* const host =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (device == MAP_FAILED || host == MAP_FAILED)
        std::abort();
    device_ = static_cast<std::byte*>(device);
    host_ = static_cast<std::byte*>(host);
    const std::lock_guard lock(mappings().mutex);
    mappings().all[device_] = {bytes, host_};
}

StandInDeviceMemory::~StandInDeviceMemory() {
    {
        const std::lock_guard lock(mappings().mutex);
        mappings().all.erase(device_);
    }
    ::munmap(device_, size_bytes_);
    ::munmap(host_, size_bytes_);
}

}  // namespace spillway::testing

using spillway::testing::CuFileStandIn;

extern "C" {

CuFileError cuFileDriverOpen() {
    return {CuFileStandIn::instance().driver_code, 0};
}

CuFileError cuFileDriverGetProperties(CuFileProperties* properties) {
    const CuFileStandIn& self = CuFileStandIn::instance();
    *properties = {};
    properties->driver.major_version = 2;
    properties->driver.minor_version = 17;
    properties->driver.status_flags = self.status_flags;
    properties->driver.control_flags = self.control_flags;
    properties->feature_flags = self.feature_flags;
    return {self.properties_code, 0};
}

CuFileError cuFileHandleRegister(void** handle, CuFileDescriptor* descriptor) {
    CuFileStandIn& self = CuFileStandIn::instance();
    const std::lock_guard lock(self.mutex);
    if (descriptor->type != 1 || descriptor->file_system_operations != nullptr)
        return {spillway::testing::bad_value, 0};
    if ((::fcntl(descriptor->descriptor, F_GETFL) & O_DIRECT) == 0)
        return {spillway::testing::not_direct, 0};
    if (self.descriptors.contains(descriptor->descriptor))
        return {spillway::testing::handle_twice, 0};
    self.descriptors[descriptor->descriptor] = 1;
    ++self.registered_handles;
    *handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor->descriptor) + 1);
    return {0, 0};
}

void cuFileHandleDeregister(void* handle) {
    CuFileStandIn& self = CuFileStandIn::instance();
    const std::lock_guard lock(self.mutex);
    if (self.descriptors.erase(spillway::testing::descriptor_of(handle)) == 0)
        self.faults.emplace_back("a handle given back twice");
    else
        --self.registered_handles;
}

CuFileError cuFileBufRegister(const void* base, std::size_t bytes, int flags) {
    CuFileStandIn& self = CuFileStandIn::instance();
    const std::lock_guard lock(self.mutex);
    const auto* const start = static_cast<const std::byte*>(base);
    if (flags != 0)
        return {spillway::testing::bad_value, 0};
    if (spillway::testing::mappings().find(start, bytes) == nullptr)
        return {spillway::testing::memory_unknown, 0};
    if (self.buffers.contains(start))
        return {spillway::testing::memory_twice, 0};
    if (bytes > self.most_registered_bytes - self.registered_bytes)
        return {spillway::testing::pinning_failed, 0};
    self.buffers[start] = bytes;
    self.registered_bytes += bytes;
    return {0, 0};
}

CuFileError cuFileBufDeregister(const void* base) {
    CuFileStandIn& self = CuFileStandIn::instance();
    const std::lock_guard lock(self.mutex);
    const auto found = self.buffers.find(static_cast<const std::byte*>(base));
    if (found == self.buffers.end()) {
        self.faults.emplace_back("memory given back twice");
        return {spillway::testing::memory_unknown, 0};
    }
    self.registered_bytes -= found->second;
    self.buffers.erase(found);
    return {0, 0};
}

ssize_t cuFileRead(void* handle, void* base, std::size_t bytes, off_t file_offset,
                   off_t base_offset) {
    return spillway::testing::transfer(handle, static_cast<const std::byte*>(base), bytes,
                                       file_offset, base_offset, true);
}

ssize_t cuFileWrite(void* handle, const void* base, std::size_t bytes, off_t file_offset,
                    off_t base_offset) {
    return spillway::testing::transfer(handle, static_cast<const std::byte*>(base), bytes,
                                       file_offset, base_offset, false);
}
}
