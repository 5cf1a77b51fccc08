// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace spillway::nvme::testing {

/// A run of units.
struct UnitRange {
    std::uint64_t first = 0;
    std::uint64_t count = 0;

    [[nodiscard]] bool overlaps(const UnitRange& other) const noexcept {
        return first < other.first + other.count && other.first < first + count;
    }
};

/// What a part of a file must hold, unit by unit. Every write gives its units a new version, which
/// is part of their contents. After a write that failed a unit holds either, until it is read or
/// written again. Not thread-safe.
class SoakModel {
  public:
    /// The smallest that a drive writes at once, and every alignment that is asked for.
    static constexpr std::size_t unit_bytes = 4096;

    /// Of units [first, first + count) of the file, all of version 0 to begin with.
    SoakModel(std::uint64_t first, std::uint64_t count) : first_(first), versions_(count) {}

    [[nodiscard]] std::uint64_t first() const noexcept { return first_; }
    [[nodiscard]] std::uint64_t units() const noexcept { return versions_.size(); }

    /// The contents of a new version of the range. The write counts once it is reported.
    [[nodiscard]] std::uint64_t prepare_write(UnitRange range, std::span<std::byte> into);
    void written(UnitRange range, std::uint64_t version);
    void write_failed(UnitRange range, std::uint64_t version);

    /// "" where a successful read of the range brought what is allowed, else what is wrong.
    [[nodiscard]] std::string check_read(UnitRange range, std::span<const std::byte> found);

    /// What a unit holds at a version.
    static void fill(std::span<std::byte> unit, std::uint64_t number, std::uint64_t version);

  private:
    [[nodiscard]] bool is_allowed(std::uint64_t number, std::uint64_t version) const;

    std::uint64_t first_;
    std::uint64_t last_version_ = 0;
    std::vector<std::uint64_t> versions_;
    std::map<std::uint64_t, std::vector<std::uint64_t>> doubtful_;  ///< also allowed, by unit
};

}  // namespace spillway::nvme::testing
