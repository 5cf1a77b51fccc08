// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cuda_memory.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "cuda/device.h"
#include "cuda/host_mapping.h"

namespace spillway::cuda {
namespace {

constexpr std::string_view purpose = "device memory";

std::byte* pointer_to(driver::Address address) {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

}  // namespace

CudaMemory::CudaMemory(std::shared_ptr<CudaCore> core, std::size_t capacity_bytes)
    : core_(std::move(core)), capacity_bytes_(capacity_bytes / page_bytes * page_bytes) {}

CudaMemory::~CudaMemory() {
    while (!runs_.empty())
        deallocate(runs_.begin()->first);
}

std::byte* CudaMemory::allocate(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    const std::size_t room = capacity_bytes_ - used_bytes_;
    const std::size_t length = round_up_to_page(bytes);
    if (bytes > room || length > room)
        throw OutOfDeviceMemory(core_->name(), bytes, room);
    const Run run = take(length, bytes);
    std::byte* const data = pointer_to((run.base + page_bytes - 1) / page_bytes * page_bytes);
    runs_.emplace(data, run);
    used_bytes_ += length;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    return data;
}

CudaMemory::Run CudaMemory::take(std::size_t bytes, std::size_t asked_bytes) {
    const auto scope = core_->current();
    driver::Address base = take_from_driver(bytes);
    // The driver promises 256 bytes; more than that has to be cut out of a longer run.
    if (base != 0 && base % page_bytes != 0) {
        core_->check(core_->driver()->memory_free(base), "cuMemFree", purpose);
        base = take_from_driver(bytes + page_bytes);
    }
    if (base != 0)
        return {bytes, base};
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    core_->check(core_->driver()->memory_info(&free_bytes, &total_bytes), "cuMemGetInfo", purpose);
    throw OutOfDeviceMemory(core_->name(), asked_bytes, std::min(free_bytes, asked_bytes - 1));
}

driver::Address CudaMemory::take_from_driver(std::size_t bytes) {
    driver::Address base = 0;
    const auto result = core_->driver()->memory_allocate(&base, bytes);
    if (result == driver::out_of_memory)
        return 0;
    core_->check(result, "cuMemAlloc", purpose);
    return base;
}

void CudaMemory::deallocate(std::byte* data) noexcept {
    try {
        const std::scoped_lock lock(mutex_);
        const auto found = runs_.find(data);
        if (found == runs_.end())
            return;
        const Run run = found->second;
        used_bytes_ -= run.bytes;
        runs_.erase(found);
        const auto scope = core_->current();
        core_->driver()->memory_free(run.base);
    } catch (const DriverError&) {
        // A lost context has lost its memory too.
    }
}

bool CudaMemory::overlaps(const std::byte* data, std::size_t bytes) const {
    const std::scoped_lock lock(mutex_);
    const auto next = runs_.upper_bound(data);
    const bool into_next =
        next != runs_.end() && bytes > static_cast<std::size_t>(next->first - data);
    if (next == runs_.begin())
        return into_next;
    const auto& [begin, run] = *std::prev(next);
    return into_next || static_cast<std::size_t>(data - begin) < run.bytes;
}

bool CudaMemory::allocated(const std::byte* data, std::size_t bytes) const {
    const std::scoped_lock lock(mutex_);
    const auto next = runs_.upper_bound(data);
    if (next == runs_.begin())
        return false;
    const auto& [begin, run] = *std::prev(next);
    const auto past = static_cast<std::size_t>(data - begin);
    return past < run.bytes && bytes <= run.bytes - past;
}

std::size_t CudaMemory::free_bytes() const {
    const std::scoped_lock lock(mutex_);
    return capacity_bytes_ - used_bytes_;
}

std::size_t CudaMemory::peak_bytes() const {
    const std::scoped_lock lock(mutex_);
    return peak_bytes_;
}

}  // namespace spillway::cuda
