// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "nvme/io_queue.h"
#include "offload/commit_table.h"

namespace spillway::offload {

/// The two alternating tables and records of design section 7, in a run's state folder: `table.0`,
/// `table.1`, `record.0`, `record.1`. A record (4 KiB: magic, format version, sequence, run,
/// iteration, update, layout generation, table slot, table length, XXH3-64 of the table, clean or
/// dirty, XXH3-64 of itself) counts only if it hashes, its table hashes and it is of the manifest's
/// layout; the newest that counts wins. One of another layout is no damage: it is what a move left
/// behind, or made and did not publish. All I/O, flushes included, goes through the queue, so that
/// a test can drop or tear any of it. Not thread-safe.
class CommitLog {
  public:
    enum class Start { create, open_existing, open_read_only };

    /// For writing: whether any of the four files is there decides; the log completes the others.
    [[nodiscard]] static Start start_for(const std::filesystem::path& folder);

    /// `create` makes and preallocates the four files and flushes the folder; existing ones are an
    /// error. Opening tolerates files that are missing or short, as a kill inside `create` leaves
    /// them (record.0 is made first); recover() then completes them in a log that was opened for
    /// writing.
    CommitLog(nvme::IoQueue& queue, const std::filesystem::path& folder, const RunId& run,
              const CommitTableShape& shape, Start start, std::uint64_t generation = 0);
    ~CommitLog();
    CommitLog(const CommitLog&) = delete;
    CommitLog& operator=(const CommitLog&) = delete;

    struct Recovered {
        CommitTable table;
        enum class Condition { clean, dirty } condition = Condition::clean;
        std::string
            warning;  ///< a record that was written but does not count: which and why; else empty
    };
    /// The newest commit that counts; none if no commit was ever completed. Records that were
    /// written but of which none counts are a std::runtime_error that says what was found in each
    /// slot. Needed once before the first commit() on an existing log.
    [[nodiscard]] std::optional<Recovered> recover();

    /// Makes `table` the newest commit: table written and flushed, then record written and flushed.
    /// The data it names must be flushed before. `table.sequence` must be one more than the last.
    /// Returns the bytes written. Throws on any I/O error, after which the log must not be used
    /// (the former commit is still whole).
    std::uint64_t commit(const CommitTable& table);

    /// For runs without two copies: rewrites the newest record as dirty and flushes it, before the
    /// first overwrite of data that the commit names. Returns the bytes written.
    std::uint64_t mark_dirty();

    /// The log of the next layout, with tables of `shape`: its first commit follows the newest of
    /// this one, in the other slot, and counts once the manifest is of that layout. This log must
    /// have been recovered and must not be written to any more.
    [[nodiscard]] CommitLog next_layout(const CommitTableShape& shape) const;

    /// Memory that the log holds for its life, as large as it really is.
    [[nodiscard]] std::size_t buffer_bytes() const noexcept;

  private:
    class Impl;
    explicit CommitLog(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::offload
