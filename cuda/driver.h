// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cuda/driver_api.h"

namespace spillway::cuda {

/// There is no driver that can be used; what() says why and what to do.
class DriverUnavailable : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A call of the driver failed. what() names the call, what it was for, and the driver's name and
/// text of the error.
class DriverError : public std::runtime_error {
  public:
    DriverError(const std::string& text, driver::Result with)
        : std::runtime_error(text), result(with) {}
    driver::Result result;
};

/// The CUDA driver, loaded when it is asked for: nothing is linked against CUDA. Thread-safe.
class Driver {
  public:
    static constexpr std::string_view default_library = "libcuda.so.1";

    /// Loads `library` (by the rules of dlopen), finds every function and initialises it. Throws
    /// DriverUnavailable.
    [[nodiscard]] static std::shared_ptr<const Driver> load(const std::string& library);

    /// `loaded` is let go with the last owner.
    Driver(std::shared_ptr<void> loaded, const driver::Functions& functions)
        : library_(std::move(loaded)), functions_(functions) {}

    [[nodiscard]] const driver::Functions* operator->() const noexcept { return &functions_; }

    /// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
    [[nodiscard]] std::string describe(driver::Result result) const;
    /// Throws DriverError unless `result` is success. `call` is the driver's name of the function,
    /// `purpose` what it was called for.
    void check(driver::Result result, std::string_view call, std::string_view purpose) const;

  private:
    std::shared_ptr<void> library_;
    driver::Functions functions_;
};

/// Whether the context is lost with this error: every later call fails with it too.
[[nodiscard]] bool is_sticky(driver::Result result) noexcept;

}  // namespace spillway::cuda
