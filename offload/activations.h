// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spillway::offload {

/// Where the input of a layer rests from forward to backward.
enum class ActivationTier : std::uint8_t {
    device,  ///< where it was made
    host,
    nvme,  ///< in a file without a name, which nothing survives
    none,  ///< its client makes it again
};

/// The inputs of a model's layers as they rest: fixed for the run. Placement only.
struct ActivationLayout {
    std::vector<ActivationTier> tiers;  ///< by layer; of all its micro-batches alike
    std::size_t micro_batches = 1;
    std::size_t bytes = 0;  ///< of one input: of a layer and micro-batch

    [[nodiscard]] std::size_t layers_in(ActivationTier tier) const noexcept {
        std::size_t count = 0;
        for (const auto one : tiers)
            count += one == tier ? 1 : 0;
        return count;
    }
    /// Of all layers that rest there.
    [[nodiscard]] std::uint64_t bytes_in(ActivationTier tier) const noexcept {
        return std::uint64_t{layers_in(tier)} * micro_batches * bytes;
    }
    /// That leave the device, and come back to it, in a step.
    [[nodiscard]] std::uint64_t moved_bytes() const noexcept {
        return bytes_in(ActivationTier::host) + bytes_in(ActivationTier::nvme);
    }
};

/// Takes inputs away from the device in forward and brings them back in backward, by a thread of
/// its own: beside the layers' work, through the queues of the engine that it belongs to. One step
/// saves all of them before it fetches any, each at most once. All calls come from the thread that
/// feeds the compute stream. What fails poisons the engine; the next call that waits throws it. Of
/// layers that stay on the device nothing may be asked.
class ActivationStore {
  public:
    virtual ~ActivationStore() = default;

    /// Starts to take away the input that work queued so far has made `at` that place on the
    /// device.
    virtual void save(std::size_t layer, std::size_t micro_batch, const std::byte* at) = 0;
    /// Work queued from here on may overwrite the place of an input that save() was told of.
    virtual void wait_saved(std::size_t layer, std::size_t micro_batch) = 0;
    /// Starts to bring an input to a place that work queued so far is the last to use.
    virtual void fetch(std::size_t layer, std::size_t micro_batch, std::byte* to) = 0;
    /// Work queued from here on may read an input that fetch() was told of.
    virtual void wait_fetched(std::size_t layer, std::size_t micro_batch) = 0;
    /// Nothing touches the device's memory any more; for its end alone.
    virtual void close() noexcept = 0;
};

}  // namespace spillway::offload
