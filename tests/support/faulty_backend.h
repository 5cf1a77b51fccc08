// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "nvme/forwarding_backend.h"

namespace spillway::testing {

/// How often, per operation, something goes wrong; the rest goes through.
struct FaultRates {
    double short_transfer = 0.1;  ///< some blocks move, and the true count comes back
    double interrupted = 0.05;    ///< EINTR, nothing moves; of transfers alone
    double refused = 0.05;        ///< EAGAIN, nothing moves; of transfers alone
    double failed = 0.01;         ///< EIO, nothing moves; of flushes too
    double back_pressure = 0.1;   ///< per submit(): only some of what is offered is taken
};

/// What was injected, and the balance of ids. From any thread.
struct FaultCounts {
    std::atomic<std::uint64_t> taken = 0;
    std::atomic<std::uint64_t> completed = 0;
    std::atomic<std::uint64_t> faults = 0;
};

/// A real backend whose operations go wrong at random, as a drive's might, and complete out of
/// order.
class FaultyBackend final : public nvme::ForwardingBackend {
  public:
    FaultyBackend(std::unique_ptr<nvme::IoBackend> inner, FaultRates rates, std::uint64_t seed,
                  std::shared_ptr<FaultCounts> counts);

    std::size_t submit(std::span<const nvme::BackendOperation> operations) override;
    std::size_t wait(std::span<nvme::BackendCompletion> completions) override;

  private:
    [[nodiscard]] bool happens(double rate);
    /// A negated errno that takes the operation's place; 0: none does.
    [[nodiscard]] std::int64_t injected_error(nvme::IoOperation operation);
    [[nodiscard]] nvme::BackendOperation cut_short(nvme::BackendOperation operation);

    FaultRates rates_;
    std::mt19937_64 random_;
    std::shared_ptr<FaultCounts> counts_;
    std::vector<nvme::BackendCompletion> injected_;  ///< not yet given back
    std::size_t in_inner_ = 0;
};

}  // namespace spillway::testing
