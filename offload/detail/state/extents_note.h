// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "offload/commit_table.h"

namespace spillway::offload::detail {

/// What the lock file of an extents folder says: whose extents they are and what they have seen.
struct ExtentsNote {
    RunId run;
    std::uint64_t sequence = 0;  ///< of the newest commit whose data lies here; 0: none yet
    std::int64_t pid = 0;        ///< last exclusive holder, for messages only
    std::filesystem::path out;   ///< absolute; the OUT that last held them

    /// Lines of "key value". All but the path have a fixed width and lie in the first 512 bytes, so
    /// a new sequence overwrites the old one in place within one sector.
    [[nodiscard]] std::string text() const;
    /// Nothing for a text that text() did not make.
    [[nodiscard]] static std::optional<ExtentsNote> parse(std::string_view text);
};

}  // namespace spillway::offload::detail
