// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/driver.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "cuda/shared_library.h"

namespace spillway::cuda {
namespace {

template <typename Function>
void find(void* library, const std::string& library_name, const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, symbol));
    if (function == nullptr)
        throw DriverUnavailable(
            fmt::format("'{}' is no CUDA driver of version 12 or later: it has no '{}'; install a "
                        "newer NVIDIA driver",
                        library_name, symbol));
}

}  // namespace

std::shared_ptr<const Driver> Driver::load(const std::string& library) {
    auto [loaded, refusal] = load_library(library);
    if (loaded == nullptr)
        throw DriverUnavailable(
            fmt::format("no CUDA driver ({}); install the NVIDIA driver, or use 'cpu'", refusal));
    driver::Functions functions;
#define SPILLWAY_CUDA_DRIVER_FIND(name, symbol, parameters) \
    find(loaded.get(), library, #symbol, functions.name);
    SPILLWAY_CUDA_DRIVER_FUNCTIONS(SPILLWAY_CUDA_DRIVER_FIND)
#undef SPILLWAY_CUDA_DRIVER_FIND
    auto driver = std::make_shared<const Driver>(std::move(loaded), functions);
    if (const auto result = functions.init(0); result != driver::success)
        throw DriverUnavailable(fmt::format("the CUDA driver '{}' does not start: {}", library,
                                            driver->describe(result)));
    return driver;
}

std::string Driver::describe(driver::Result result) const {
    const char* name = nullptr;
    const char* text = nullptr;
    // Both refuse an error they do not know and then leave the pointer alone.
    functions_.error_name(result, &name);
    functions_.error_text(result, &text);
    return fmt::format("{} ({}): {}", name != nullptr ? name : "unknown error", result,
                       text != nullptr ? text : "the driver has no text for it");
}

void Driver::check(driver::Result result, std::string_view call, std::string_view purpose) const {
    if (result != driver::success)
        throw DriverError(fmt::format("{}: {} failed with {}", purpose, call, describe(result)),
                          result);
}

bool is_sticky(driver::Result result) noexcept {
    // Those of which <cuda.h> says that the process must be terminated and launched again.
    constexpr driver::Result lost[] = {214, 220, 226, 700, 702, 710, 714,
                                       715, 716, 717, 718, 719, 721, 999};
    return std::find(std::begin(lost), std::end(lost), result) != std::end(lost);
}

}  // namespace spillway::cuda
