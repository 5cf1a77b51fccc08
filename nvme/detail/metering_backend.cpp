// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/metering_backend.h"

#include <utility>

namespace spillway::nvme::detail {

MeteringBackend::MeteringBackend(std::unique_ptr<IoBackend> inner,
                                 std::shared_ptr<std::vector<float>> latencies_us)
    : ForwardingBackend(std::move(inner)),
      latencies_us_(std::move(latencies_us)),
      flights_(depth()) {}

std::size_t MeteringBackend::submit(std::span<const BackendOperation> operations) {
    const auto now = Clock::now();
    for (const BackendOperation& one : operations)
        flights_[one.id] = {now, one.operation != IoOperation::flush};
    return inner().submit(operations);
}

std::size_t MeteringBackend::wait(std::span<BackendCompletion> completions) {
    const std::size_t count = inner().wait(completions);
    const auto now = Clock::now();
    for (const BackendCompletion& one : completions.first(count)) {
        const Flight& flight = flights_[one.id];
        if (flight.is_transfer)
            latencies_us_->push_back(
                std::chrono::duration<float, std::micro>(now - flight.began).count());
    }
    return count;
}

}  // namespace spillway::nvme::detail
