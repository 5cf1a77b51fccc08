// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Modules and kernels.
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>

#include "tests/support/cuda_standin/driver_calls.h"

namespace spillway::standin {
namespace {

using NamedKernel = std::pair<const std::string, EmulatedKernel>;

void execute(const NamedKernel& named, const Grid& grid, void* parameters) {
    if (fails_in_stream(named.first))
        return;
    try {
        std::vector<std::shared_ptr<Mapping>> alive;
        const Translation translation = [&](const void* device, std::size_t bytes) {
            auto place = find_device_memory(address_of(device), bytes);
            if (place.data == nullptr)
                throw std::runtime_error(
                    fmt::format("kernel '{}' uses {} bytes at {} that are freed or were never "
                                "allocated",
                                named.first, bytes, device));
            alive.push_back(std::move(place.backing));
            return place.data;
        };
        named.second.run(parameters, grid, translation);
    } catch (const std::exception& error) {
        lose_context(driver::illegal_address, error.what());
    }
}

}  // namespace

SPILLWAY_STANDIN_EXPORT driver::Result cuModuleLoadDataEx(driver::ModuleHandle* handle,
                                                          const void* image, unsigned, int*,
                                                          void**) {
    return call("cuModuleLoadDataEx", Needs::context, [&](StandinState& s, Lock&) {
        constexpr unsigned char fat_binary[] = {0x50, 0xED, 0x55, 0xBA};
        const bool known = image == emulated_kernels().data() ||
                           std::memcmp(image, fat_binary, sizeof(fat_binary)) == 0;
        if (!known)
            return driver::invalid_value;
        auto* const module = new char;
        s.modules.insert(module);
        *handle = reinterpret_cast<driver::ModuleHandle>(module);
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuModuleUnload(driver::ModuleHandle handle) {
    return call("cuModuleUnload", Needs::context, [&](StandinState& s, Lock&) {
        if (s.modules.erase(handle) == 0)
            return driver::invalid_handle;
        delete reinterpret_cast<char*>(handle);
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuModuleGetFunction(driver::FunctionHandle* function,
                                                           driver::ModuleHandle module,
                                                           const char* name) {
    return call("cuModuleGetFunction", Needs::context, [&](StandinState& s, Lock&) {
        if (!s.modules.contains(module))
            return driver::invalid_handle;
        const auto found = kernel_registry().find(name);
        if (found == kernel_registry().end())
            return driver::not_found;
        *function = reinterpret_cast<driver::FunctionHandle>(
            const_cast<std::pair<const std::string, EmulatedKernel>*>(&*found));
        return driver::success;
    });
}

SPILLWAY_STANDIN_EXPORT driver::Result cuLaunchKernel(driver::FunctionHandle function, unsigned x,
                                                      unsigned y, unsigned z, unsigned threads_x,
                                                      unsigned threads_y, unsigned threads_z,
                                                      unsigned shared_bytes,
                                                      driver::StreamHandle handle,
                                                      void** parameters, void** extra) {
    return call("cuLaunchKernel", Needs::context, [&](StandinState& s, Lock&) {
        constexpr unsigned most_threads = 1024;
        constexpr unsigned most_shared_bytes = 48 << 10;
        auto* const stream = stream_of(handle);
        if (stream == nullptr)
            return driver::invalid_handle;
        if (x == 0 || y != 1 || z != 1 || threads_x == 0 || threads_x > most_threads ||
            threads_y != 1 || threads_z != 1 || shared_bytes > most_shared_bytes ||
            parameters == nullptr || extra != nullptr)
            return driver::invalid_value;
        const auto& named = *reinterpret_cast<const NamedKernel*>(function);
        require_current(s, "cuLaunchKernel", stream->device);
        for (const auto& use : named.second.uses(parameters[0]))
            require_own_memory(s, named.first.c_str(), stream->device, use.begin,
                               use.end - use.begin);
        ++s.done.kernels;
        s.report(s.order.operation(
            stream->actor, fmt::format("kernel '{}' on stream {}", named.first, stream->actor),
            named.second.uses(parameters[0])));
        queue_on(*stream, [&named, grid = Grid{x, threads_x, shared_bytes},
                           copied = named.second.copied(parameters[0])] {
            execute(named, grid, copied.get());
        });
        return driver::success;
    });
}

}  // namespace spillway::standin
