// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme/io_request.h"

namespace spillway::testing {

/// A shared library with cuFile's functions: what it is to answer, and what it was asked. It checks
/// its callers as cuFile does. One for the process; reset() between tests.
class CuFileStandIn {
  public:
    static CuFileStandIn& instance();
    /// Where the library lies, for dlopen().
    [[nodiscard]] static std::string path();

    void reset();

    // Answers.
    int driver_code = 0;      ///< of cuFileDriverOpen
    int properties_code = 0;  ///< of cuFileDriverGetProperties
    unsigned status_flags = 0;
    unsigned control_flags = 0;
    unsigned feature_flags = 0;
    std::size_t most_registered_bytes = ~std::size_t{0};
    /// Asked for each transfer with its number: empty moves all, a positive number that many bytes
    /// at most, -1 is an error in errno (`transfer_errno`), less a cuFile code.
    std::function<std::optional<std::int64_t>(std::size_t number)> result;
    int transfer_errno = 0;

    // What came of it.
    std::size_t registered_bytes = 0;
    std::size_t registered_handles = 0;
    std::size_t transfers = 0;
    std::size_t transfers_from_registered = 0;
    std::vector<std::string> faults;  ///< of the caller

    std::mutex mutex;                                 ///< guards all above while transfers run
    std::map<const std::byte*, std::size_t> buffers;  ///< registered, by start
    std::map<int, std::size_t> descriptors;           ///< registered, and how often
};

/// Memory that only the stand-in reaches: an address that faults when the processor touches it.
class StandInDeviceMemory {
  public:
    explicit StandInDeviceMemory(std::size_t bytes);
    ~StandInDeviceMemory();
    StandInDeviceMemory(const StandInDeviceMemory&) = delete;
    StandInDeviceMemory& operator=(const StandInDeviceMemory&) = delete;

    [[nodiscard]] nvme::DeviceSpan span(std::size_t from_bytes, std::size_t size_bytes) const {
        return {device_ + from_bytes, size_bytes};
    }
    /// The same bytes, for tests to look at.
    [[nodiscard]] std::span<std::byte> contents() const { return {host_, size_bytes_}; }

  private:
    std::size_t size_bytes_;
    std::byte* device_ = nullptr;
    std::byte* host_ = nullptr;
};

}  // namespace spillway::testing
