// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

namespace spillway::cuda {

inline constexpr std::size_t page_bytes = 4096;

/// `bytes` up to the next whole page. Saturates at the last whole page that a size can name.
[[nodiscard]] constexpr std::size_t round_up_to_page(std::size_t bytes) noexcept {
    const std::size_t last = ~static_cast<std::size_t>(0) / page_bytes * page_bytes;
    return bytes > last ? last : (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

/// Owns anonymous host memory, in whole pages, that costs nothing until touched. From 2 MiB on it
/// is aligned to 2 MiB and asks for huge pages. Move-only; moved-from is empty.
class HostMapping {
  public:
    /// Throws std::system_error where the address space or a limit has no room.
    explicit HostMapping(std::size_t bytes);
    ~HostMapping();
    HostMapping(HostMapping&& other) noexcept;
    HostMapping& operator=(HostMapping&& other) noexcept;
    HostMapping(const HostMapping&) = delete;
    HostMapping& operator=(const HostMapping&) = delete;

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }

  private:
    void release() noexcept;

    std::byte* data_ = nullptr;
    std::size_t size_bytes_ = 0;
};

}  // namespace spillway::cuda
