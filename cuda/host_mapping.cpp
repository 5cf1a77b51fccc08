// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/host_mapping.h"

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

namespace spillway::cuda {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

std::byte* map(std::size_t bytes) {
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        throw std::system_error(errno, std::generic_category(),
                                fmt::format("mapping {} bytes of host memory", bytes));
    return static_cast<std::byte*>(data);
}

/// Maps more than is needed and gives back what lies outside the aligned part.
std::byte* map_aligned(std::size_t bytes) {
    if (bytes > SIZE_MAX - huge_page_bytes)
        throw std::system_error(ENOMEM, std::generic_category(),
                                fmt::format("mapping {} bytes of host memory", bytes));
    std::byte* const raw = map(bytes + huge_page_bytes);
    const std::size_t past = reinterpret_cast<std::uintptr_t>(raw) % huge_page_bytes;
    const std::size_t head = past == 0 ? 0 : huge_page_bytes - past;
    if (head != 0)
        ::munmap(raw, head);
    ::munmap(raw + head + bytes, huge_page_bytes - head);
    // Only advice: where huge pages are off, small ones serve.
    ::madvise(raw + head, bytes, MADV_HUGEPAGE);
    return raw + head;
}

}  // namespace

HostMapping::HostMapping(std::size_t bytes) : size_bytes_(round_up_to_page(bytes)) {
    if (size_bytes_ != 0)
        data_ = size_bytes_ < huge_page_bytes ? map(size_bytes_) : map_aligned(size_bytes_);
}

HostMapping::~HostMapping() {
    release();
}

HostMapping::HostMapping(HostMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

HostMapping& HostMapping::operator=(HostMapping&& other) noexcept {
    if (this != &other) {
        release();
        data_ = std::exchange(other.data_, nullptr);
        size_bytes_ = std::exchange(other.size_bytes_, 0);
    }
    return *this;
}

void HostMapping::release() noexcept {
    if (data_ != nullptr)
        ::munmap(data_, size_bytes_);
}

}  // namespace spillway::cuda
