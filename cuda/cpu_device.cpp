// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cpu_device.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <system_error>

#include "cuda/cpu_stream.h"
#include "cuda/device_counters.h"
#include "cuda/host_mapping.h"

namespace spillway::cuda {
namespace {

class CpuDevice final : public Device {
  public:
    /// `for_copies`: page-locks all buffers; null: nobody does.
    CpuDevice(std::size_t capacity_bytes, Device* for_copies)
        : capacity_bytes_(capacity_bytes), for_copies_(for_copies) {}

    std::string name() const override { return "cpu"; }
    MemoryKind memory_kind() const noexcept override { return MemoryKind::host; }
    std::size_t capacity_bytes() const noexcept override { return capacity_bytes_; }
    double link_bytes_per_s() const noexcept override { return 0; }

    std::size_t free_bytes() const noexcept override {
        const std::scoped_lock lock(mutex_);
        return capacity_bytes_ - used_bytes_;
    }

    DeviceBuffer allocate(std::size_t bytes) override;

    std::unique_ptr<Stream> create_stream(std::string_view name) override {
        return std::make_unique<CpuStream>(name, counters_);
    }

    DeviceStatistics statistics() const override {
        DeviceStatistics statistics = counters_->snapshot();
        const std::scoped_lock lock(mutex_);
        statistics.peak_bytes = peak_bytes_;
        return statistics;
    }

  private:
    void deallocate(std::byte* data, std::size_t) noexcept override {
        const std::scoped_lock lock(mutex_);
        const auto found = mappings_.find(data);
        if (found == mappings_.end())
            return;
        used_bytes_ -= found->second.mapping.size_bytes();
        mappings_.erase(found);
    }

    /// Unlocked before it is gone.
    struct Buffer {
        HostMapping mapping;
        std::unique_ptr<HostRegistration> registration = nullptr;
    };

    const std::size_t capacity_bytes_;
    Device* const for_copies_;
    const std::shared_ptr<DeviceCounters> counters_ = std::make_shared<DeviceCounters>();
    mutable std::mutex mutex_;
    std::map<std::byte*, Buffer> mappings_;  ///< sizes sum up to used_bytes_
    std::size_t used_bytes_ = 0;
    std::size_t peak_bytes_ = 0;
};

DeviceBuffer CpuDevice::allocate(std::size_t bytes) {
    if (bytes == 0)
        return {};
    const std::scoped_lock lock(mutex_);
    const std::size_t free_bytes = capacity_bytes_ - used_bytes_;
    if (round_up_to_page(bytes) > free_bytes || bytes > free_bytes)
        throw OutOfDeviceMemory(name(), bytes, free_bytes);
    HostMapping mapping(bytes);
    std::byte* const data = mapping.data();
    const auto size_bytes = mapping.size_bytes();
    Buffer buffer{.mapping = std::move(mapping)};
    if (for_copies_ != nullptr)
        buffer.registration = for_copies_->register_host(data, size_bytes);
    mappings_.emplace(data, std::move(buffer));
    used_bytes_ += size_bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    return {*this, data, bytes};
}

}  // namespace

std::unique_ptr<Device> make_cpu_device(std::size_t capacity_bytes) {
    return std::make_unique<CpuDevice>(capacity_bytes, nullptr);
}

std::unique_ptr<Device> make_page_locked_host(std::size_t capacity_bytes, Device& for_copies) {
    return std::make_unique<CpuDevice>(capacity_bytes, &for_copies);
}

}  // namespace spillway::cuda
