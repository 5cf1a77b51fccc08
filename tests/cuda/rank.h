// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <vector>

#include "cuda/communicator.h"
#include "cuda/device.h"

/// What tests of communicators do on each rank, whatever its device.
namespace spillway::testing {

/// A device, a stream and a communicator of its own, in this order.
struct Rank {
    std::unique_ptr<cuda::Device> device;
    std::unique_ptr<cuda::Stream> stream;
    std::unique_ptr<cuda::Communicator> communicator;
};

inline std::vector<float> numbers(std::size_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> any(0, 1000);
    std::vector<float> result(count);
    for (float& number : result)
        number = any(random);
    return result;
}

inline cuda::DeviceBuffer sent(Rank& rank, const std::vector<float>& values) {
    auto buffer = rank.device->allocate(values.size() * sizeof(float));
    rank.stream->copy_to_device(buffer.data(), reinterpret_cast<const std::byte*>(values.data()),
                                values.size() * sizeof(float));
    rank.stream->synchronize();
    return buffer;
}

inline std::vector<float> received(Rank& rank, const float* from, std::size_t count) {
    std::vector<float> values(count);
    rank.stream->copy_to_host(reinterpret_cast<std::byte*>(values.data()),
                              reinterpret_cast<const std::byte*>(from), count * sizeof(float));
    rank.stream->synchronize();
    return values;
}

}  // namespace spillway::testing
