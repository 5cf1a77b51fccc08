// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>

#include "engine/model/gpt2_activations.h"
#include "offload/activations.h"

namespace spillway::engine {

/// What a training pass does beside its work for the inputs of layers that leave the device, for
/// the micro-batch that starts at `token`. Of layers whose inputs stay, and of what follows the
/// last one, nothing.
class LeavingInputs {
  public:
    /// `store`: null if none leave, or those that do are made again, which is not done here.
    LeavingInputs(const Gpt2Activations& memory, offload::ActivationStore* store,
                  std::size_t layers, std::size_t micro_tokens) noexcept
        : memory_(memory), store_(store), layers_(layers), micro_tokens_(micro_tokens) {}

    /// Before work is queued that makes the input of `layer`: its place may have another's.
    void before_made(std::size_t layer, std::size_t token) const {
        if (store_ == nullptr || layer == layers_)
            return;
        if (const auto& former = memory_.input_places().former(layer))
            store_->wait_saved(*former, token / micro_tokens_);
    }
    void after_made(std::size_t layer, std::size_t token) const {
        if (store_ != nullptr && layer < layers_ && memory_.input_places().leaves(layer))
            store_->save(layer, token / micro_tokens_, place(layer, token));
    }
    /// Before and after work is queued that is the last to use it.
    void before_used(std::size_t layer, std::size_t token) const {
        if (store_ != nullptr && memory_.input_places().leaves(layer))
            store_->wait_fetched(layer, token / micro_tokens_);
    }
    void after_used(std::size_t layer, std::size_t token) const {
        if (store_ == nullptr)
            return;
        if (const auto& former = memory_.input_places().former(layer))
            store_->fetch(*former, token / micro_tokens_, place(layer, token));
    }
    void close() const noexcept {
        if (store_ != nullptr)
            store_->close();
    }

  private:
    [[nodiscard]] std::byte* place(std::size_t layer, std::size_t token) const {
        return reinterpret_cast<std::byte*>(memory_.block_input(layer, token));
    }

    const Gpt2Activations& memory_;
    offload::ActivationStore* store_;
    std::size_t layers_;
    std::size_t micro_tokens_;
};

}  // namespace spillway::engine
