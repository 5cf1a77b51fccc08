// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <system_error>
#include <type_traits>

#include <sys/mman.h>
#include <unistd.h>

namespace spillway::cpu_optim::testing {

/// Where a run of elements lies between two pages that may not be touched.
enum class Placement {
    at_first_guard,   ///< the first element follows the guard page: vector-aligned
    one_past_guard,   ///< one element later: aligned for its own type only
    at_second_guard,  ///< the last element ends at the guard page
};

inline constexpr std::array every_placement{Placement::at_first_guard, Placement::one_past_guard,
                                            Placement::at_second_guard};

/// `elements` of T between guard pages. An access beyond them is a fault or, within a page, damage
/// that unharmed() finds.
template <typename T>
class GuardedBuffer {
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    GuardedBuffer(std::size_t elements, Placement placement) {
        const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        const std::size_t wanted_bytes = (elements + 1) * sizeof(T);
        const std::size_t open_bytes = (wanted_bytes + page_bytes - 1) / page_bytes * page_bytes;
        mapped_bytes_ = open_bytes + 2 * page_bytes;
        void* const mapped =
            ::mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED)
            throw std::system_error(errno, std::generic_category(), "mmap of a guarded buffer");
        mapped_ = static_cast<std::byte*>(mapped);
        open_ = {mapped_ + page_bytes, open_bytes};
        if (::mprotect(open_.data(), open_bytes, PROT_READ | PROT_WRITE) != 0)
            throw std::system_error(errno, std::generic_category(), "mprotect of a guarded buffer");
        std::ranges::fill(open_, canary);

        const std::size_t last_offset_bytes = open_bytes - elements * sizeof(T);
        const std::size_t offset_bytes = placement == Placement::at_first_guard ? 0
                                         : placement == Placement::one_past_guard
                                             ? sizeof(T)
                                             : last_offset_bytes;
        elements_ = {reinterpret_cast<T*>(open_.data() + offset_bytes), elements};
    }
    ~GuardedBuffer() { ::munmap(mapped_, mapped_bytes_); }
    GuardedBuffer(const GuardedBuffer&) = delete;
    GuardedBuffer& operator=(const GuardedBuffer&) = delete;

    [[nodiscard]] std::span<T> span() const { return elements_; }

    /// Whether the bytes around the elements are as the constructor left them.
    [[nodiscard]] bool unharmed() const {
        const auto run = std::as_bytes(elements_);
        const auto offset = static_cast<std::size_t>(run.data() - open_.data());
        const auto is_canary = [](std::byte byte) { return byte == canary; };
        return std::ranges::all_of(open_.first(offset), is_canary) &&
               std::ranges::all_of(open_.subspan(offset + run.size()), is_canary);
    }

  private:
    static constexpr std::byte canary{0xA5};

    std::byte* mapped_ = nullptr;
    std::size_t mapped_bytes_ = 0;
    std::span<std::byte> open_;
    std::span<T> elements_;
};

}  // namespace spillway::cpu_optim::testing
