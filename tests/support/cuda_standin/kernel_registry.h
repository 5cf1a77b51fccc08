// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda_standin/emulator.h"
#include "tests/support/cuda_standin/order_checker.h"

namespace spillway::standin {

/// Where the host keeps the memory behind a device's address; throws where there is none.
using Translation = std::function<std::byte*(const void* device, std::size_t bytes)>;

/// A kernel's real source, compiled for the host.
struct EmulatedKernel {
    /// A copy of the parameters, made while the kernel is queued.
    std::function<std::shared_ptr<void>(const void* parameters)> copied;
    std::function<std::vector<OrderChecker::Use>(const void* parameters)> uses;
    /// Exchanges the addresses in `parameters` and runs.
    std::function<void(void* parameters, Grid grid, const Translation& translation)> run;
};

/// By name.
[[nodiscard]] const std::map<std::string, EmulatedKernel>& kernel_registry();

}  // namespace spillway::standin
