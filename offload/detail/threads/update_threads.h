// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "cpu_optim/isa.h"

namespace spillway::offload::detail {

/// The threads of the update and the instruction set they use. One caller at a time.
class UpdateThreads {
  public:
    UpdateThreads(std::size_t threads, cpu_optim::Isa isa);
    ~UpdateThreads();
    UpdateThreads(const UpdateThreads&) = delete;
    UpdateThreads& operator=(const UpdateThreads&) = delete;

    /// body(i) for i in [0, count), in any order; throws what a body threw.
    void for_each(std::uint64_t count, const std::function<void(std::uint64_t)>& body);

    [[nodiscard]] cpu_optim::Isa isa() const noexcept { return isa_; }

  private:
    class Arena;
    std::unique_ptr<Arena> arena_;
    cpu_optim::Isa isa_;
};

}  // namespace spillway::offload::detail
