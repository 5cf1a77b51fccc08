// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/placement/memory_ledger.h"

#include <stdexcept>

#include <fmt/format.h>

namespace spillway::offload::detail {

void MemoryLedger::count(std::string_view name, std::size_t bytes) {
    if (bytes > limit_bytes_ - total_bytes_)
        throw std::logic_error(
            fmt::format("host memory of the plan exceeded: {} asks {} bytes, {} of {} are taken",
                        name, bytes, total_bytes_, limit_bytes_));
    total_bytes_ += bytes;
}

nvme::HugePageArena MemoryLedger::arena(std::string_view name, std::size_t bytes) {
    if (bytes == 0)
        return {};
    count(name, arena_bytes(bytes));
    return nvme::HugePageArena(bytes);
}

std::byte* ArenaCutter::cut(std::size_t bytes) {
    constexpr std::size_t granularity = 4096;
    const auto taken = (bytes + granularity - 1) / granularity * granularity;
    if (taken > rest_.size())
        throw std::logic_error(
            fmt::format("an arena with {} bytes left was asked for {}", rest_.size(), taken));
    auto* const data = rest_.data();
    rest_ = rest_.subspan(taken);
    return data;
}

}  // namespace spillway::offload::detail
