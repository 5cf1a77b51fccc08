// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>
#include <vector>

#include "cuda/cuda_core.h"
#include "cuda/device.h"

namespace spillway::cuda {

/// Host memory that is page-locked piece by piece.
class CudaRegistration final : public HostRegistration {
  public:
    /// All pieces or none: where one fails, those before it are undone and DriverError names it.
    CudaRegistration(std::shared_ptr<CudaCore> core, std::byte* data, std::size_t bytes,
                     std::size_t piece_bytes);
    ~CudaRegistration() override;
    CudaRegistration(const CudaRegistration&) = delete;
    CudaRegistration& operator=(const CudaRegistration&) = delete;

    [[nodiscard]] std::size_t page_locked_bytes() const noexcept override { return bytes_; }

  private:
    void undo() noexcept;

    const std::shared_ptr<CudaCore> core_;
    std::vector<std::byte*> pieces_;  ///< those that are locked, in order
    std::size_t bytes_ = 0;           ///< of them
};

}  // namespace spillway::cuda
