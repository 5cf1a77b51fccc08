// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/cuda_standin/device_memory.h"

#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace spillway::standin {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t small_bytes = std::size_t{1} << 20;
constexpr std::size_t small_alignment = 512;

std::size_t whole_pages(std::size_t bytes) {
    return (bytes + page - 1) / page * page;
}

}  // namespace

Mapping::Mapping(std::size_t bytes, Kind kind) : bytes_(whole_pages(bytes)) {
    const int protection = kind == Kind::usable ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* const mapped =
        ::mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        throw std::bad_alloc();
    data_ = static_cast<std::byte*>(mapped);
}

Mapping::~Mapping() {
    ::munmap(data_, bytes_);
}

std::uintptr_t DeviceMemory::allocate(std::size_t bytes, std::size_t limit_bytes) {
    if (bytes > limit_bytes || bytes_ > limit_bytes - bytes)
        return 0;
    const std::size_t past = bytes < small_bytes ? small_alignment : 0;
    auto reserved = std::make_shared<Mapping>(bytes + past, Mapping::Kind::reserved);
    auto backing = std::make_shared<Mapping>(bytes, Mapping::Kind::usable);
    std::memset(backing->data(), 0xDB, bytes);
    const auto address = reinterpret_cast<std::uintptr_t>(reserved->data()) + past;
    reserved_.emplace(address, std::move(reserved));
    allocated_.emplace(address, Allocation{bytes, std::move(backing)});
    bytes_ += bytes;
    return address;
}

DeviceMemory::Allocation DeviceMemory::free(std::uintptr_t address) {
    const auto found = allocated_.find(address);
    if (found == allocated_.end())
        return {};
    Allocation allocation = std::move(found->second);
    allocated_.erase(found);
    bytes_ -= allocation.bytes;
    return allocation;
}

DeviceMemory::Place DeviceMemory::find(std::uintptr_t address, std::size_t bytes) const {
    const auto next = allocated_.upper_bound(address);
    if (next == allocated_.begin())
        return {};
    const auto& [begin, allocation] = *std::prev(next);
    const std::size_t past = address - begin;
    if (past >= allocation.bytes || bytes > allocation.bytes - past)
        return {};
    return {allocation.backing->data() + past, allocation.backing};
}

}  // namespace spillway::standin
