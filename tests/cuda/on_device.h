// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstring>
#include <vector>

#include "cuda/device.h"

namespace spillway::cuda {

/// A device's copy of host data, and the way back.
template <typename T>
class OnDevice {
  public:
    OnDevice(Device& device, Stream& stream, const std::vector<T>& values)
        : stream_(stream), count_(values.size()), buffer_(device.allocate(count_ * sizeof(T))) {
        stream.copy_to_device(buffer_.data(), reinterpret_cast<const std::byte*>(values.data()),
                              count_ * sizeof(T));
        stream.synchronize();
    }
    [[nodiscard]] T* data() const { return buffer_.as<T>(); }
    [[nodiscard]] std::vector<T> values() const {
        std::vector<T> values(count_);
        stream_.copy_to_host(reinterpret_cast<std::byte*>(values.data()), buffer_.data(),
                             count_ * sizeof(T));
        stream_.synchronize();
        return values;
    }

  private:
    Stream& stream_;
    std::size_t count_;
    DeviceBuffer buffer_;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace spillway::cuda
