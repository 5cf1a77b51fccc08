// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::offload {

/// What a lane stands still for: the first six as in the stalls that a run reports, then work of
/// other lanes.
enum class TraceCause : std::uint8_t {
    nvme_read,
    nvme_write,
    link,
    cpu,  ///< an update's arithmetic
    commit,
    devices,    ///< what other devices of a group have yet to do, and copies between them
    compute,    ///< forward and backward
    weights,    ///< joining a weight's halves
    gradients,  ///< adding up and scanning
    other,      ///< nothing that is traced: the loop around the steps
};
inline constexpr std::size_t trace_causes = 10;
/// "nvme_read", ...
[[nodiscard]] std::string_view trace_cause_name(TraceCause cause) noexcept;

/// Something that works at times and stands still at others.
struct TraceLane {
    std::string name;
    TraceCause work = TraceCause::other;  ///< what the others wait for while this one is busy
    /// While this lane is idle and has no wait of its own that names a cause: it waits for the
    /// first of these that is under way.
    std::vector<TraceCause> waits_for;
};

/// What an event tells beside its name and its time.
struct TraceNumbers {
    const char* what = nullptr;  ///< of `number`, a literal: "block", "chunk", "offset"; null: none
    std::uint64_t number = 0;
    std::uint64_t bytes = 0;  ///< moved; 0: none
};

class StepTrace;

/// A line of the trace, where one event follows the other. A copyable handle; an empty one records
/// nothing and costs nothing. begin() and end() are for one thread at a time (or a stream's order),
/// whichever; a row that was begun and is begun again ends first.
class TraceRow {
  public:
    TraceRow() noexcept = default;
    [[nodiscard]] bool records() const noexcept { return trace_ != nullptr; }
    /// `name`: a literal.
    void begin(const char* name, TraceNumbers numbers = {}) const noexcept;
    void end() const noexcept;
    /// What was begun did not happen.
    void drop() const noexcept;
    /// Of a row of waits, whose events are named by their causes.
    void begin_wait() const noexcept;
    void end_wait(TraceCause cause) const noexcept;

  private:
    friend class StepTrace;
    TraceRow(StepTrace* trace, std::size_t row) noexcept : trace_(trace), row_(row) {}
    StepTrace* trace_ = nullptr;
    std::size_t row_ = 0;
};

/// How a lane spent its time.
struct TraceLaneTimes {
    std::string name;
    std::vector<std::size_t> rows;  ///< "tid" in the file
    double busy_s = 0;              ///< at least one of its rows had an event
    std::array<double, trace_causes> idle_s{};
};

struct TraceSummary {
    std::filesystem::path file;
    std::string failure;       ///< why the file is not there, or ends early; "" if it is whole
    double wall_s = 0;         ///< from start() to stop()
    std::uint64_t events = 0;  ///< in the file; 0 if there is none
    std::uint64_t dropped_events = 0;  ///< that are not: the disk was full or too slow
    std::vector<TraceLaneTimes> lanes;
};

/// Records what a run does, on lanes, between start() and stop(), and streams it to a file in the
/// trace event format (chrome://tracing, https://ui.perfetto.dev). Each lane's busy and idle time
/// is kept at every change and adds up to the wall time exactly, whatever becomes of the events.
///
/// Events wait in a ring of fixed size for a thread that writes them; nobody who records one ever
/// waits for the disk. A ring that is full drops events and counts them. A disk that fails is told
/// to `warn`, once; the file then ends early, and the run goes on. Where not even its end can be
/// written there is none, which is told too. The file gets its name when it is whole JSON, at
/// finish() or in the destructor; until then it is PATH.spillway-partial, locked.
///
/// Thread-safe. Must outlive its rows' users.
class StepTrace {
  public:
    /// Where a disk has less room than this, no trace begins.
    static constexpr std::uint64_t least_room_bytes = std::uint64_t{1} << 20;
    /// What it takes in host memory, whatever is recorded.
    [[nodiscard]] static std::size_t memory_bytes() noexcept;

    /// Makes the partial file. Throws std::system_error naming the path: no folder, not to be
    /// written, not a file, no room, another's trace under way. `warn` runs on a thread of the
    /// trace's own, and on the caller's in finish() and the destructor; it must not throw.
    StepTrace(std::filesystem::path file, std::function<void(const std::string&)> warn);
    ~StepTrace();
    StepTrace(const StepTrace&) = delete;
    StepTrace& operator=(const StepTrace&) = delete;

    /// Returns the lane's number. Lanes and rows are shown in the order in which they are added.
    [[nodiscard]] std::size_t add_lane(TraceLane lane);
    /// A row of events of `lane`; of several at once each has one. `name`: "" for the lane's.
    [[nodiscard]] TraceRow add_row(std::size_t lane, std::string name = "");
    /// A row of waits of `lane`, which is not busy meanwhile.
    [[nodiscard]] TraceRow add_wait_row(std::size_t lane, std::string name);
    /// Of waits that several lanes are in at once.
    [[nodiscard]] TraceRow add_wait_row(std::vector<std::size_t> lanes, std::string name);
    /// A row that belongs to no lane: marks.
    [[nodiscard]] TraceRow add_mark_row(std::string name);

    void start();
    void stop();
    /// stop(), if need be, then the rest of the file: none is made of what never started. The same
    /// summary every time.
    const TraceSummary& finish();

  private:
    friend class TraceRow;
    class Impl;
    std::unique_ptr<Impl> impl_;
};

/// An event as long as this object. Not for streams: see StreamSpan.
class TraceSpan {
  public:
    TraceSpan(TraceRow row, const char* name, TraceNumbers numbers = {}) noexcept : row_(row) {
        row_.begin(name, numbers);
    }
    ~TraceSpan() { row_.end(); }
    TraceSpan(const TraceSpan&) = delete;
    TraceSpan& operator=(const TraceSpan&) = delete;

  private:
    TraceRow row_;
};

}  // namespace spillway::offload
