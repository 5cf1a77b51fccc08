// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>

namespace spillway::nvme {

/// Whether the kernel agreed to back the memory with huge pages.
enum class HugePages { granted, refused };

/// One anonymous mapping, aligned to 2 MiB and advised onto huge pages: the memory direct I/O
/// should use, since a request from 4 KiB pages breaks into one segment a page. Zero-filled.
/// Move-only; a moved-from arena is empty. Every page is touched on construction, so that a budget
/// is really taken at the start and not later.
class HugePageArena {
  public:
    static constexpr std::size_t page_bytes = std::size_t{2} << 20;

    HugePageArena() noexcept = default;
    /// Maps `bytes`, rounded up to whole huge pages. Throws std::system_error naming the bytes
    /// asked for.
    explicit HugePageArena(std::size_t bytes);
    ~HugePageArena();
    HugePageArena(HugePageArena&& other) noexcept;
    HugePageArena& operator=(HugePageArena&& other) noexcept;
    HugePageArena(const HugePageArena&) = delete;  // owns a mapping
    HugePageArena& operator=(const HugePageArena&) = delete;

    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_bytes_}; }
    /// What the mapping really takes, for the ledger.
    [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }
    [[nodiscard]] HugePages huge_pages() const noexcept { return huge_pages_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t size_bytes_ = 0;
    HugePages huge_pages_ = HugePages::refused;
};

}  // namespace spillway::nvme
