// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/model/gpt2_tensors.h"

namespace spillway::engine {

Gpt2Offsets::Gpt2Offsets(const Gpt2Config& config) {
    const offload::ElementOrder order(gpt2_tensors(config));
    const auto units = gpt2_units(config);
    const auto offset = [&](const offload::Unit& unit, offload::TensorId tensor) {
        return static_cast<std::size_t>(order.range(unit.first_tensor + tensor).begin -
                                        order.range(unit.first_tensor).begin);
    };
    for (offload::TensorId tensor = 0; tensor < block_.size(); ++tensor)
        block_[tensor] = offset(units[2], tensor);
    final_bias_ = offset(units.back(), 1);
}

}  // namespace spillway::engine
