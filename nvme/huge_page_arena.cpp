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
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "nvme/detail/error_name.h"

namespace spillway::nvme {

namespace {

// MADV_POPULATE_WRITE of Linux 5.14, which older headers do not name.
constexpr int advice_populate_write = 23;

constexpr const char* huge_page_setting = "/sys/kernel/mm/transparent_hugepage/enabled";

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
    std::ifstream setting(huge_page_setting);
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

HugePageArena::HugePageArena(std::size_t bytes, PageKind best) {
    if (bytes == 0)
        return;
    if (bytes > std::numeric_limits<std::size_t>::max() - 2 * page_bytes)
        fail(ENOMEM, bytes, "the size overflows");
    const std::size_t rounded_bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
    if (best != PageKind::reserved_huge || !take_reserved(rounded_bytes))
        take_ordinary(rounded_bytes, best);
}

bool HugePageArena::take_reserved(std::size_t bytes) {
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
    int error = mapped == MAP_FAILED ? errno : 0;
    if (error == 0)
        error = touch_pages(static_cast<std::byte*>(mapped), bytes);
    if (error == 0) {
        data_ = static_cast<std::byte*>(mapped);
        size_bytes_ = bytes;
        pages_ = PageKind::reserved_huge;
        return true;
    }
    if (mapped != MAP_FAILED)
        ::munmap(mapped, bytes);
    note_ = fmt::format(
        "I/O buffers lie on transparent huge pages, not on reserved ones: {} of "
        "2 MiB are needed ({}); set vm.nr_hugepages for them, or leave it",
        bytes / page_bytes, detail::error_name(error));
    return false;
}

void HugePageArena::take_ordinary(std::size_t bytes, PageKind best) {
    std::byte* const mapped = map_aligned(bytes, page_bytes);
    const int advice = best == PageKind::small ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
    const bool advised = ::madvise(mapped, bytes, advice) == 0;
    if (const int error = touch_pages(mapped, bytes); error != 0) {
        ::munmap(mapped, bytes);
        fail(error, bytes, "touching the pages");
    }
    data_ = mapped;
    size_bytes_ = bytes;
    if (best == PageKind::small)
        return;
    if (advised && !huge_pages_switched_off()) {
        pages_ = PageKind::transparent_huge;
        return;
    }
    note_ = fmt::format(
        "I/O buffers lie on 4 KiB pages, from which a drive gives direct I/O as little as a "
        "quarter of its rate: transparent huge pages are switched off; write \"madvise\" to {}{}",
        huge_page_setting,
        best == PageKind::reserved_huge ? ", or reserve some with vm.nr_hugepages" : "");
}

HugePageArena::~HugePageArena() {
    if (data_ != nullptr)
        ::munmap(data_, size_bytes_);
}

HugePageArena::HugePageArena(HugePageArena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      pages_(std::exchange(other.pages_, PageKind::small)),
      note_(std::exchange(other.note_, {})) {}

HugePageArena& HugePageArena::operator=(HugePageArena&& other) noexcept {
    HugePageArena taken(std::move(other));
    std::swap(data_, taken.data_);
    std::swap(size_bytes_, taken.size_bytes_);
    std::swap(pages_, taken.pages_);
    std::swap(note_, taken.note_);
    return *this;
}

}  // namespace spillway::nvme
