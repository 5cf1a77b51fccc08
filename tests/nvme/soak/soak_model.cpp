// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/nvme/soak/soak_model.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

namespace spillway::nvme::testing {

void SoakModel::fill(std::span<std::byte> unit, std::uint64_t number, std::uint64_t version) {
    std::memcpy(unit.data(), &version, sizeof version);
    std::uint64_t state = (number + 1) * 0x9e3779b97f4a7c15U ^ (version + 1) * 0xbf58476d1ce4e5b9U;
    for (std::size_t at = sizeof version; at < unit.size(); at += sizeof state) {
        state ^= state << 13U;
        state ^= state >> 7U;
        state ^= state << 17U;
        std::memcpy(unit.data() + at, &state, sizeof state);
    }
}

std::uint64_t SoakModel::prepare_write(UnitRange range, std::span<std::byte> into) {
    ++last_version_;
    for (std::uint64_t i = 0; i < range.count; ++i)
        fill(into.subspan(i * unit_bytes, unit_bytes), range.first + i, last_version_);
    return last_version_;
}

void SoakModel::written(UnitRange range, std::uint64_t version) {
    for (std::uint64_t i = 0; i < range.count; ++i) {
        versions_[range.first + i - first_] = version;
        doubtful_.erase(range.first + i);
    }
}

void SoakModel::write_failed(UnitRange range, std::uint64_t version) {
    for (std::uint64_t i = 0; i < range.count; ++i)
        doubtful_[range.first + i].push_back(version);
}

bool SoakModel::is_allowed(std::uint64_t number, std::uint64_t version) const {
    if (versions_[number - first_] == version)
        return true;
    const auto others = doubtful_.find(number);
    return others != doubtful_.end() &&
           std::find(others->second.begin(), others->second.end(), version) != others->second.end();
}

std::string SoakModel::check_read(UnitRange range, std::span<const std::byte> found) {
    std::array<std::byte, unit_bytes> expected;
    for (std::uint64_t i = 0; i < range.count; ++i) {
        const std::uint64_t number = range.first + i;
        const auto unit = found.subspan(i * unit_bytes, unit_bytes);
        std::uint64_t version = 0;
        std::memcpy(&version, unit.data(), sizeof version);
        if (!is_allowed(number, version))
            return fmt::format("unit {} holds version {}, not {}", number, version,
                               versions_[number - first_]);
        fill(expected, number, version);
        const auto differs = std::mismatch(unit.begin(), unit.end(), expected.begin()).first;
        if (differs != unit.end())
            return fmt::format("unit {} of version {} differs at its byte {}", number, version,
                               differs - unit.begin());
        versions_[number - first_] = version;
        doubtful_.erase(number);
    }
    return {};
}

}  // namespace spillway::nvme::testing
