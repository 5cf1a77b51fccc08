// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace spillway::standin {

/// Owns a mapping of whole pages.
class Mapping {
  public:
    enum class Kind { reserved, usable };  ///< reserved: an address that cannot be touched
    Mapping(std::size_t bytes, Kind kind);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    [[nodiscard]] std::byte* data() const noexcept { return data_; }

  private:
    std::byte* data_;
    std::size_t bytes_;
};

/// The memory of one device. An address of it is reserved in this process for ever and backed by
/// memory elsewhere, so that the host cannot touch it and a freed one is not given out again. What
/// is allocated holds poison. Not thread-safe.
class DeviceMemory {
  public:
    struct Allocation {
        std::size_t bytes = 0;
        std::shared_ptr<Mapping> backing;  ///< shared by the operations that use it
    };

    /// Aligned as the driver does: small ones to 512 bytes and no more. 0 where `limit_bytes` would
    /// be exceeded.
    [[nodiscard]] std::uintptr_t allocate(std::size_t bytes, std::size_t limit_bytes);
    /// Empty where nothing begins there.
    [[nodiscard]] Allocation free(std::uintptr_t address);

    /// The memory behind `bytes` at `address`, and what keeps it alive; null where not all of them
    /// lie in one allocation.
    struct Place {
        std::byte* data = nullptr;
        std::shared_ptr<Mapping> backing;
    };
    [[nodiscard]] Place find(std::uintptr_t address, std::size_t bytes) const;
    [[nodiscard]] std::size_t allocations() const { return allocated_.size(); }
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

  private:
    std::map<std::uintptr_t, Allocation> allocated_;
    std::map<std::uintptr_t, std::shared_ptr<Mapping>> reserved_;
    std::size_t bytes_ = 0;
};

}  // namespace spillway::standin
