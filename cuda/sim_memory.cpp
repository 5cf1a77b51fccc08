// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/sim_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <utility>

#include "cuda/device.h"

namespace spillway::cuda {

SimMemory::SimMemory(std::string device_name, std::size_t capacity_bytes)
    : device_name_(std::move(device_name)), region_(capacity_bytes / page_bytes * page_bytes) {
    if (region_.size_bytes() != 0)
        free_.emplace(0, region_.size_bytes());
}

std::byte* SimMemory::allocate(std::size_t bytes) {
    const std::size_t length = round_up_to_page(bytes);
    const std::scoped_lock lock(mutex_);
    const auto fits = [&](const auto& run) { return run.second >= bytes && run.second >= length; };
    const auto found = std::find_if(free_.begin(), free_.end(), fits);
    if (found == free_.end()) {
        std::size_t longest_run_bytes = 0;
        for (const auto& run : free_)
            longest_run_bytes = std::max(longest_run_bytes, run.second);
        throw OutOfDeviceMemory(device_name_, bytes, region_.size_bytes() - used_bytes_,
                                longest_run_bytes);
    }
    const std::size_t offset = found->first;
    allocated_.emplace(offset, length);
    auto rest = free_.extract(found);
    if (rest.mapped() != length) {
        rest.key() += length;
        rest.mapped() -= length;
        free_.insert(std::move(rest));
    }
    used_bytes_ += length;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    return region_.data() + offset;
}

void SimMemory::deallocate(std::byte* data) noexcept {
    if (!overlaps(data, 1))
        return;
    std::unique_lock lock(mutex_);
    auto run = allocated_.extract(static_cast<std::size_t>(data - region_.data()));
    if (run.empty())
        return;
    // In neither map now: nobody else can get it, so the fill needs no lock.
    lock.unlock();
    std::memset(data, std::to_integer<int>(poison), run.mapped());
    lock.lock();
    used_bytes_ -= run.mapped();
    insert_free(std::move(run));
}

void SimMemory::insert_free(Runs::node_type run) noexcept {
    const auto next = free_.lower_bound(run.key());
    if (next != free_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == run.key()) {
            run.key() = previous->first;
            run.mapped() += previous->second;
            free_.erase(previous);
        }
    }
    if (next != free_.end() && run.key() + run.mapped() == next->first) {
        run.mapped() += next->second;
        free_.erase(next);
    }
    free_.insert(std::move(run));
}

bool SimMemory::overlaps(const std::byte* data, std::size_t bytes) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const auto region = reinterpret_cast<std::uintptr_t>(region_.data());
    return bytes != 0 && begin < region + region_.size_bytes() &&
           (begin >= region || bytes > region - begin);
}

bool SimMemory::allocated(const std::byte* data, std::size_t bytes) const {
    if (!overlaps(data, 1))
        return false;
    const auto begin = static_cast<std::size_t>(data - region_.data());
    const std::scoped_lock lock(mutex_);
    auto run = allocated_.upper_bound(begin);
    if (run == allocated_.begin())
        return false;
    --run;
    const std::size_t past = begin - run->first;
    return past < run->second && bytes <= run->second - past;
}

std::size_t SimMemory::free_bytes() const {
    const std::scoped_lock lock(mutex_);
    return region_.size_bytes() - used_bytes_;
}

std::size_t SimMemory::peak_bytes() const {
    const std::scoped_lock lock(mutex_);
    return peak_bytes_;
}

}  // namespace spillway::cuda
