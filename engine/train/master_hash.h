// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace spillway::engine {

/// XXH3-64 of fp32 values in the order they come, as little-endian bytes: of a run's masters,
/// tensor by tensor, it says whether two runs ended with the same bits. Not thread-safe.
class MasterHash {
  public:
    MasterHash();
    ~MasterHash();
    MasterHash(const MasterHash&) = delete;
    MasterHash& operator=(const MasterHash&) = delete;

    void add(std::span<const float> values);
    [[nodiscard]] std::uint64_t digest() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace spillway::engine
