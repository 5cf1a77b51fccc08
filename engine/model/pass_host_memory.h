// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/device.h"
#include "cuda/host_mapping.h"

namespace spillway::engine {

/// What a pass copies between host and device: `tokens` of 32 bits up, and its loss, a double,
/// down. Page-locked where the device gains by it: a GPU copies other memory through buffers of its
/// driver's, for which the host waits. Throws what register_host() throws. No copy may be in flight
/// at its end.
class PassHostMemory {
  public:
    PassHostMemory(cuda::Device& device, std::size_t tokens)
        : memory_(loss_bytes + tokens * sizeof(std::int32_t)),
          page_locked_(device.register_host(memory_.data(), memory_.size_bytes())) {}

    [[nodiscard]] std::byte* loss() const noexcept { return memory_.data(); }
    [[nodiscard]] std::byte* tokens() const noexcept { return memory_.data() + loss_bytes; }

  private:
    static constexpr std::size_t loss_bytes = 64;  ///< a cache line of its own

    cuda::HostMapping memory_;
    std::unique_ptr<cuda::HostRegistration> page_locked_;  ///< of the memory above: ends first
};

}  // namespace spillway::engine
