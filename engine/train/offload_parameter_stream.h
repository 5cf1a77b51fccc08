// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "engine/model/parameter_stream.h"
#include "offload/offload_engine.h"

namespace spillway::engine {

/// A model's pass on the memory manager. The pass must have been announced to it. As thread-safe as
/// the engine, which must outlive it.
class OffloadParameterStream final : public ParameterStream {
  public:
    explicit OffloadParameterStream(offload::OffloadEngine& engine) noexcept : engine_(engine) {}

    [[nodiscard]] const float* acquire_weights(std::size_t unit) override {
        return engine_.acquire_weights(unit);
    }
    void release_weights(std::size_t unit) override { engine_.release_weights(unit); }
    [[nodiscard]] float* acquire_gradient(std::size_t unit) override {
        return engine_.acquire_gradient(unit);
    }
    void release_gradient(std::size_t unit) override { engine_.release_gradient(unit); }

  private:
    offload::OffloadEngine& engine_;
};

}  // namespace spillway::engine
