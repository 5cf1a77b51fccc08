// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <string_view>

namespace spillway::cuda {

/// A device as named on the command line.
struct DeviceSpec {
    enum class Kind { cpu, cuda, sim };
    Kind kind = Kind::cpu;
    std::size_t capacity_bytes = 0;  ///< of a `sim`; 0 else
    double link_bytes_per_s = 0;     ///< of a `sim`; 0 for as fast as memory
    int ordinal = 0;                 ///< of a `cuda`, as the driver counts
};

/// "cpu", "cuda:N" or "sim:BYTES[@RATE]": BYTES as for parse_byte_count(), at least 4096; RATE the
/// same with
/// "/s". Throws std::invalid_argument that names the spec, what is wrong with it and what is
/// accepted.
[[nodiscard]] DeviceSpec parse_device_spec(std::string_view spec);

}  // namespace spillway::cuda
