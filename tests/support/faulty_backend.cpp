// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/faulty_backend.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace spillway::testing {

FaultyBackend::FaultyBackend(std::unique_ptr<nvme::IoBackend> inner, FaultRates rates,
                             std::uint64_t seed, std::shared_ptr<FaultCounts> counts)
    : ForwardingBackend(std::move(inner)),
      rates_(rates),
      random_(seed),
      counts_(std::move(counts)) {}

bool FaultyBackend::happens(double rate) {
    return std::uniform_real_distribution<>(0, 1)(random_) < rate;
}

std::int64_t FaultyBackend::injected_error(nvme::IoOperation operation) {
    if (happens(rates_.failed))
        return -EIO;
    if (operation == nvme::IoOperation::flush)
        return 0;  // any error of a flush is final
    if (happens(rates_.interrupted))
        return -EINTR;
    return happens(rates_.refused) ? -EAGAIN : 0;
}

nvme::BackendOperation FaultyBackend::cut_short(nvme::BackendOperation operation) {
    // Whole blocks, as a file system has them: half of one never stands beside half of another.
    constexpr std::size_t unit = 4096;
    const std::size_t units = operation.length_bytes / unit;
    if (operation.operation != nvme::IoOperation::flush && units > 1) {
        operation.length_bytes = (1 + random_() % (units - 1)) * unit;
        ++counts_->faults;
    }
    return operation;
}

std::size_t FaultyBackend::submit(std::span<const nvme::BackendOperation> operations) {
    std::size_t wanted =
        std::min(operations.size(), inner().depth() - in_inner_ - injected_.size());
    if (happens(rates_.back_pressure))
        wanted = random_() % (wanted + 1);
    std::size_t taken = 0;
    for (; taken < wanted; ++taken) {
        nvme::BackendOperation operation = operations[taken];
        const std::int64_t error = injected_error(operation.operation);
        if (error != 0) {
            injected_.push_back({operation.id, error});
            ++counts_->faults;
            continue;
        }
        if (happens(rates_.short_transfer))
            operation = cut_short(operation);
        if (inner().submit({&operation, 1}) == 0)
            break;
        ++in_inner_;
    }
    counts_->taken += taken;
    return taken;
}

std::size_t FaultyBackend::wait(std::span<nvme::BackendCompletion> completions) {
    std::size_t count = 0;
    // What was injected ends before, between and after what is real.
    if (in_inner_ > 0 && (injected_.empty() || happens(0.5))) {
        count = inner().wait(completions);
        in_inner_ -= count;
    } else if (injected_.empty()) {
        return inner().wait(completions);  // nothing is in flight: for the wake alone
    } else {
        std::shuffle(injected_.begin(), injected_.end(), random_);
        count = std::min(completions.size(), 1 + random_() % injected_.size());
        std::copy_n(injected_.end() - static_cast<std::ptrdiff_t>(count), count,
                    completions.begin());
        injected_.resize(injected_.size() - count);
    }
    counts_->completed += count;
    return count;
}

}  // namespace spillway::testing
