// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/huge_page_arena.h"

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>

namespace spillway::nvme {

namespace {

// MADV_POPULATE_WRITE of Linux 5.14, which older headers do not name.
constexpr int advice_populate_write = 23;

[[noreturn]] void fail(int error, std::size_t bytes, const char* call) {
    throw std::system_error(
        error, std::generic_category(),
        fmt::format("cannot take {} bytes of memory for I/O buffers ({}); free memory, raise the "
                    "address-space or cgroup limit, or ask for less",
                    bytes, call));
}

/// madvise succeeds even where an administrator or a parent process turned huge pages off.
bool huge_pages_switched_off() {
    if (::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1)
        return true;
    std::ifstream setting("/sys/kernel/mm/transparent_hugepage/enabled");
    std::string text;
    return !std::getline(setting, text) || text.find("[never]") != std::string::npos;
}

/// Maps a huge page more than asked for, then gives back what lies outside the aligned middle.
std::byte* map_aligned(std::size_t bytes, std::size_t alignment) {
    const std::size_t mapped_bytes = bytes + alignment;
    void* mapped = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        fail(errno, bytes, "mmap");
    auto* start = static_cast<std::byte*>(mapped);
    const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(start) % alignment;
    const std::size_t head = misaligned == 0 ? 0 : alignment - misaligned;
    if (head != 0)
        ::munmap(start, head);
    if (alignment != head)
        ::munmap(start + head + bytes, alignment - head);
    return start + head;
}

/// 0, or the errno that says why the pages could not be had.
int touch_pages(std::byte* data, std::size_t bytes) {
    while (::madvise(data, bytes, advice_populate_write) != 0) {
        if (errno == EINTR || errno == EAGAIN)
            continue;
        if (errno != EINVAL)
            return errno;
        constexpr std::size_t small_page_bytes = 4096;
        for (std::size_t at = 0; at < bytes; at += small_page_bytes)
            *const_cast<volatile std::byte*>(data + at) = std::byte{0};
        return 0;
    }
    return 0;
}

}  // namespace

HugePageArena::HugePageArena(std::size_t bytes) {
    if (bytes == 0)
        return;
    if (bytes > std::numeric_limits<std::size_t>::max() - 2 * page_bytes)
        fail(ENOMEM, bytes, "the size overflows");
    const std::size_t rounded_bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    std::byte* mapped = map_aligned(rounded_bytes, page_bytes);
    const bool advised = ::madvise(mapped, rounded_bytes, MADV_HUGEPAGE) == 0;
    const int error = touch_pages(mapped, rounded_bytes);
    if (error != 0) {
        ::munmap(mapped, rounded_bytes);
        fail(error, rounded_bytes, "touching the pages");
    }
    data_ = mapped;
    size_bytes_ = rounded_bytes;
    huge_pages_ = advised && !huge_pages_switched_off() ? HugePages::granted : HugePages::refused;
}

HugePageArena::~HugePageArena() {
    if (data_ != nullptr)
        ::munmap(data_, size_bytes_);
}

HugePageArena::HugePageArena(HugePageArena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      huge_pages_(std::exchange(other.huge_pages_, HugePages::refused)) {}

HugePageArena& HugePageArena::operator=(HugePageArena&& other) noexcept {
    HugePageArena taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(size_bytes_, taken.size_bytes_);
    std::swap(huge_pages_, taken.huge_pages_);
    return *this;
}

}  // namespace spillway::nvme
