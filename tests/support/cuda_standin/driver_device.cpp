// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Initialisation, devices, contexts, memory.
#include <cstring>

#include <fmt/format.h>

#include "tests/support/cuda_standin/driver_calls.h"

namespace spillway::standin {
namespace {

thread_local std::vector<int> current_contexts;

struct Named {
    int result;
    const char* name;
    const char* text;
};
constexpr Named errors[] = {
    {driver::success, "CUDA_SUCCESS", "no error"},
    {driver::invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {driver::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {driver::not_initialised, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {driver::invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {driver::invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {driver::not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {driver::not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {driver::illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {driver::already_registered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {driver::not_registered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {driver::launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};
constexpr int invalid_device = 101;

driver::Result describe(int result, const char** text, const char* Named::*member) {
    for (const Named& error : errors)
        if (error.result == result) {
            *text = error.*member;
            return driver::success;
        }
    return driver::invalid_value;
}

/// Contexts are numbers from 1; nothing is behind the handle.
driver::ContextHandle handle_of(int device) {
    return reinterpret_cast<driver::ContextHandle>(static_cast<std::uintptr_t>(device) + 1);
}

bool exists(const StandinState& s, driver::DeviceId device) {
    return device >= 0 && device < s.settings.devices;
}

}  // namespace

int device_of(driver::ContextHandle context) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
}

int current_device() {
    return current_contexts.empty() ? -1 : current_contexts.back();
}

driver::Result push_context(int device) {
    if (!state().contexts.contains(device))
        return driver::invalid_context;
    current_contexts.push_back(device);
    return driver::success;
}

int pop_context() {
    const int device = current_device();
    if (device >= 0)
        current_contexts.pop_back();
    return device;
}

DeviceMemory::Place find_device_memory(std::uintptr_t address, std::size_t bytes) {
    auto& s = state();
    const std::scoped_lock lock(s.mutex);
    for (const DeviceMemory& memory : s.memory)
        if (auto place = memory.find(address, bytes); place.data != nullptr)
            return place;
    return {};
}

SPILLWAY_STANDIN_EXPORT driver::Result cuInit(unsigned flags) {
    return call("cuInit", Needs::nothing, [&](StandinState& s, Lock&) {
        if (flags != 0)
            return driver::invalid_value;
        s.initialised = true;
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuDriverGetVersion(int* version) {
    return call("cuDriverGetVersion", Needs::nothing, [&](StandinState& s, Lock&) {
        *version = s.settings.driver_version;
        return driver::success;
    });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuGetErrorName(driver::Result result, const char** text) {
    return describe(result, text, &Named::name);
}
SPILLWAY_STANDIN_EXPORT driver::Result cuGetErrorString(driver::Result result, const char** text) {
    return describe(result, text, &Named::text);
}

SPILLWAY_STANDIN_EXPORT driver::Result cuDeviceGetCount(int* count) {
    return call("cuDeviceGetCount", Needs::initialisation, [&](StandinState& s, Lock&) {
        *count = s.settings.devices;
        return driver::success;
    });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuDeviceGet(driver::DeviceId* device, int ordinal) {
    return call("cuDeviceGet", Needs::initialisation, [&](StandinState& s, Lock&) {
        *device = ordinal;
        return exists(s, ordinal) ? driver::success : invalid_device;
    });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuDeviceGetName(char* name, int length, driver::DeviceId) {
    std::strncpy(name, "Stand-in", static_cast<std::size_t>(length));
    return driver::success;
}
SPILLWAY_STANDIN_EXPORT driver::Result cuDeviceTotalMem_v2(std::size_t* bytes, driver::DeviceId) {
    return call("cuDeviceTotalMem", Needs::initialisation, [&](StandinState& s, Lock&) {
        *bytes = s.settings.device_memory_bytes;
        return driver::success;
    });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuDeviceGetAttribute(int* value, int attribute,
                                                            driver::DeviceId) {
    return call("cuDeviceGetAttribute", Needs::initialisation, [&](StandinState& s, Lock&) {
        if (attribute != driver::attribute_major && attribute != driver::attribute_minor)
            return driver::invalid_value;
        *value = attribute == driver::attribute_major ? s.settings.capability_major : 0;
        return driver::success;
    });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuDeviceGetPCIBusId(char* text, int length,
                                                           driver::DeviceId device) {
    const auto address = fmt::format("0000:{:02X}:00.0", device);
    std::strncpy(text, address.c_str(), static_cast<std::size_t>(length));
    return driver::success;
}

SPILLWAY_STANDIN_EXPORT driver::Result cuDevicePrimaryCtxRetain(driver::ContextHandle* context,
                                                                driver::DeviceId device) {
    return call("cuDevicePrimaryCtxRetain", Needs::initialisation, [&](StandinState& s, Lock&) {
        if (!exists(s, device))
            return invalid_device;
        if (++s.contexts[device] == 1)
            ++s.done.contexts_made;
        *context = handle_of(device);
        return driver::success;
    });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuDevicePrimaryCtxRelease_v2(driver::DeviceId device) {
    return call("cuDevicePrimaryCtxRelease", Needs::initialisation, [&](StandinState& s, Lock&) {
        const auto found = s.contexts.find(device);
        if (found == s.contexts.end())
            return driver::invalid_context;
        if (--found->second == 0)
            s.contexts.erase(found);
        return driver::success;
    });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuCtxPushCurrent_v2(driver::ContextHandle context) {
    return call("cuCtxPushCurrent", Needs::initialisation,
                [&](StandinState&, Lock&) { return push_context(device_of(context)); });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuCtxPopCurrent_v2(driver::ContextHandle* context) {
    const int device = pop_context();
    if (device < 0)
        return driver::invalid_context;
    *context = handle_of(device);
    return driver::success;
}

SPILLWAY_STANDIN_EXPORT driver::Result cuDeviceCanAccessPeer(int* can, driver::DeviceId device,
                                                             driver::DeviceId peer) {
    return call("cuDeviceCanAccessPeer", Needs::initialisation, [&](StandinState& s, Lock&) {
        if (!exists(s, device) || !exists(s, peer))
            return invalid_device;
        *can = device != peer && s.settings.peer_access == Settings::PeerAccess::possible ? 1 : 0;
        return driver::success;
    });
}
SPILLWAY_STANDIN_EXPORT driver::Result cuCtxEnablePeerAccess(driver::ContextHandle peer,
                                                             unsigned flags) {
    return call("cuCtxEnablePeerAccess", Needs::context, [&](StandinState& s, Lock&) {
        constexpr driver::Result peer_unsupported = 217;
        if (flags != 0 || !s.contexts.contains(device_of(peer)))
            return driver::invalid_value;
        if (s.settings.peer_access == Settings::PeerAccess::none ||
            device_of(peer) == current_device())
            return peer_unsupported;
        return s.peers.emplace(current_device(), device_of(peer)).second
                   ? driver::success
                   : driver::peer_already_enabled;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    return call("cuMemGetInfo", Needs::context, [&](StandinState& s, Lock&) {
        *total = s.settings.device_memory_bytes;
        *free = *total - s.memory[static_cast<std::size_t>(current_device())].bytes();
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuMemAlloc_v2(driver::Address* address, std::size_t bytes) {
    return call("cuMemAlloc", Needs::context, [&](StandinState& s, Lock&) {
        if (bytes == 0)
            return driver::invalid_value;
        *address = s.memory[static_cast<std::size_t>(current_device())].allocate(
            bytes, s.settings.device_memory_bytes);
        return *address == 0 ? driver::out_of_memory : driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuMemFree_v2(driver::Address address) {
    return call("cuMemFree", Needs::context, [&](StandinState& s, Lock&) {
        for (std::size_t device = 0; device < s.memory.size(); ++device) {
            const auto allocation = s.memory[device].free(address);
            if (allocation.bytes == 0)
                continue;
            require_current(s, "cuMemFree", static_cast<int>(device));
            for (const auto& use : s.order.unfinished(address, address + allocation.bytes))
                s.report(
                    fmt::format("device memory at {:#x} was freed in flight: {}", address, use));
            s.order.forget(address, address + allocation.bytes);
            return driver::success;
        }
        s.report(fmt::format("cuMemFree of {:#x}, where nothing is allocated", address));
        return driver::invalid_value;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuMemHostRegister_v2(void* data, std::size_t bytes,
                                                            unsigned) {
    return call("cuMemHostRegister", Needs::context, [&](StandinState& s, Lock&) {
        // A limit of some drivers.
        if (bytes == 0 || bytes >= std::size_t{512} << 30)
            return driver::invalid_value;
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        std::size_t locked = 0;
        for (const auto& [other, length] : s.registered) {
            locked += length;
            if (other < begin + bytes && begin < other + length)
                return driver::already_registered;
        }
        if (bytes > s.settings.page_lock_limit_bytes ||
            locked > s.settings.page_lock_limit_bytes - bytes)
            return driver::out_of_memory;
        s.registered.emplace(begin, bytes);
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuMemHostUnregister(void* data) {
    return call("cuMemHostUnregister", Needs::context, [&](StandinState& s, Lock&) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        const auto found = s.registered.find(begin);
        if (found == s.registered.end())
            return driver::not_registered;
        for (const auto& use : s.order.unfinished(begin, begin + found->second))
            s.report(fmt::format("page-locked memory was unlocked in flight: {}", use));
        s.registered.erase(found);
        return driver::success;
    });
}

}  // namespace spillway::standin
