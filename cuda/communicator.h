// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/device.h"

namespace spillway::cuda {

/// Ranks did not do the same thing together, or one of them is gone. what() names the operation and
/// the ranks.
class CommunicationFailed : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// What the ranks of a run do together, one rank's side of it. All ranks make the same calls in the
/// same order. Each is queued on a stream of that rank's device and executed in its order; sums are
/// over ranks in an order of each implementation's own, so that every rank gets the same bits
/// whenever each came. What goes wrong is thrown as CommunicationFailed by whoever waits for the
/// stream, on every rank, and by every later call's stream. All pointers are device pointers. Not
/// thread-safe.
class Communicator {
  public:
    virtual ~Communicator() = default;
    [[nodiscard]] virtual unsigned rank() const noexcept = 0;
    [[nodiscard]] virtual unsigned ranks() const noexcept = 0;

    /// all = the shares of all ranks behind each other. `share` may be its own place in `all`.
    virtual void all_gather(Stream& stream, const std::byte* share, std::byte* all,
                            std::size_t share_bytes) = 0;
    /// share = this rank's part of the sum of all ranks' `all`, which are ranks() x share_elements.
    /// `share` may be its own place in `all`.
    virtual void reduce_scatter(Stream& stream, const float* all, float* share,
                                std::size_t share_elements) = 0;
    /// data = the sum of all ranks' data.
    virtual void all_reduce(Stream& stream, float* data, std::size_t elements) = 0;
    /// data = that of rank `root`.
    /// Throws std::invalid_argument where no rank is `root`.
    virtual void broadcast(Stream& stream, std::byte* data, std::size_t bytes, unsigned root) = 0;

  protected:
    /// Throws std::invalid_argument where it is no rank.
    void check_root(unsigned root) const;
};

struct SharedMemoryRanks {
    unsigned ranks = 1;
    double patience_s = 60;  ///< for a rank that does not come
};

/// The ranks of one process whose devices compute in host memory or are simulated: each reads the
/// others' memory, and sums are in ascending order of ranks; a stream of a device with kernels is
/// refused by std::invalid_argument. One a rank, in order. A rank that destroys its own has left:
/// the others' calls fail that it had not made. Throws std::invalid_argument for no ranks.
[[nodiscard]] std::vector<std::unique_ptr<Communicator>> make_shared_memory_communicators(
    const SharedMemoryRanks& options);

}  // namespace spillway::cuda
