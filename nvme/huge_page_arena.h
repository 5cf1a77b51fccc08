// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace spillway::nvme {

/// Whether the kernel agreed to back the memory with huge pages.
enum class HugePages { granted, refused };

/// What memory lies on, the best for direct I/O first.
enum class PageKind {
    reserved_huge,     ///< of those that vm.nr_hugepages sets aside: never split, never swapped
    transparent_huge,  ///< as the kernel finds them; it may mix small ones in
    small,             ///< 4 KiB each
};

/// One anonymous mapping, aligned to 2 MiB and on huge pages: the memory direct I/O should use,
/// since a request from 4 KiB pages breaks into one segment a page. Zero-filled. Move-only; a
/// moved-from arena is empty. Every page is touched on construction, so that a budget is really
/// taken at the start and not later.
class HugePageArena {
  public:
    static constexpr std::size_t page_bytes = std::size_t{2} << 20;

    HugePageArena() noexcept = default;
    /// Maps `bytes`, rounded up to whole huge pages, on pages of `best` kind or, where those cannot
    /// be had, of the next one (see note()). Throws std::system_error naming the bytes asked for.
    explicit HugePageArena(std::size_t bytes, PageKind best = PageKind::transparent_huge);
    ~HugePageArena();
    HugePageArena(HugePageArena&& other) noexcept;
    HugePageArena& operator=(HugePageArena&& other) noexcept;
    HugePageArena(const HugePageArena&) = delete;  // owns a mapping
    HugePageArena& operator=(const HugePageArena&) = delete;

    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_bytes_}; }
    /// What the mapping really takes, for the ledger.
    [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }
    [[nodiscard]] PageKind pages() const noexcept { return pages_; }
    [[nodiscard]] HugePages huge_pages() const noexcept {
        return pages_ == PageKind::small ? HugePages::refused : HugePages::granted;
    }
    /// Why it lies on other pages than the best asked for, a sentence for people; "" if it does
    /// not.
    [[nodiscard]] const std::string& note() const noexcept { return note_; }

  private:
    [[nodiscard]] bool take_reserved(std::size_t bytes);
    void take_ordinary(std::size_t bytes, PageKind best);

    std::byte* data_ = nullptr;
    std::size_t size_bytes_ = 0;
    PageKind pages_ = PageKind::small;
    std::string note_;
};

}  // namespace spillway::nvme
