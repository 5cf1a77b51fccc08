// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/activations/activation_needs.h"

#include <algorithm>

namespace spillway::offload::detail {

ActivationNeeds activation_needs(const ActivationLayout& layout) noexcept {
    const auto slot = activation_slot_bytes(layout);
    const auto in_host = layout.layers_in(ActivationTier::host) * layout.micro_batches;
    const auto on_drive = layout.layers_in(ActivationTier::nvme) * layout.micro_batches;
    ActivationNeeds needs;
    needs.resident_bytes = in_host * slot;
    if (on_drive != 0)
        needs.staging_bytes = activation_pieces * std::min(slot, activation_piece_bytes);
    constexpr std::size_t input_bytes = 128;  // place, drive, state and event of one
    if (in_host + on_drive != 0)
        needs.table_bytes =
            layout.tiers.size() * layout.micro_batches * input_bytes +
            on_drive * pieces_of_activation(layout) * sizeof(std::uint64_t);  // checksums
    needs.disk_bytes = std::uint64_t{on_drive} * slot;
    return needs;
}

}  // namespace spillway::offload::detail
