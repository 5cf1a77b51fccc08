// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/fork_mark.h"

#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace spillway::nvme::detail {

namespace {

/// The kernel maps and empties whole pages, whatever their size.
constexpr std::size_t mark_bytes = sizeof(std::atomic<bool>);

}  // namespace

ForkMark::ForkMark() noexcept : owner_(::getpid()) {
    void* page =
        ::mmap(nullptr, mark_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return;
    if (::madvise(page, mark_bytes, MADV_WIPEONFORK) != 0) {
        ::munmap(page, mark_bytes);
        return;
    }
    here_ = new (page) std::atomic<bool>(true);
}

ForkMark::~ForkMark() {
    if (here_ != nullptr)
        ::munmap(const_cast<std::atomic<bool>*>(here_), mark_bytes);
}

bool ForkMark::is_here() const noexcept {
    if (here_ != nullptr)
        return here_->load(std::memory_order_relaxed);
    return owner_ == ::getpid();
}

}  // namespace spillway::nvme::detail
