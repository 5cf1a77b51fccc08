// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/step_trace.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "offload/detail/trace/lane_clock.h"
#include "offload/detail/trace/trace_file.h"

namespace spillway::offload {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t ring_events = 8192;
constexpr std::size_t batch_events = 512;
/// An event's numbers have 20 digits at most, its names are ours.
constexpr std::size_t most_event_bytes = 256;

/// A wait that was none: asked, and it was there.
constexpr std::uint64_t least_wait_ns = 1000;

constexpr std::array<std::string_view, trace_causes> cause_names{
    "nvme_read", "nvme_write", "link",    "cpu",       "commit",
    "devices",   "compute",    "weights", "gradients", "other"};

struct Event {
    const char* name = nullptr;
    TraceNumbers numbers;
    std::uint64_t begin_ns = 0;
    std::uint64_t end_ns = 0;
    std::size_t row = 0;
};

enum class RowKind { work, wait, mark };

struct Row {
    std::string name;
    RowKind kind = RowKind::mark;
    std::vector<std::size_t> lanes;  ///< one, of waits perhaps several, of marks none
    bool open = false;
    Event event;
};

std::uint64_t now_ns() noexcept {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
            .count());
}

double seconds(std::uint64_t nanoseconds) noexcept {
    return static_cast<double>(nanoseconds) * 1e-9;
}

/// Times in microseconds since `start_ns`.
void append_event(std::string& text, const Event& event, std::uint64_t start_ns) {
    const auto begin_ns = event.begin_ns - start_ns;
    const auto length_ns = event.end_ns - event.begin_ns;
    fmt::format_to(std::back_inserter(text),
                   ",\n{{\"name\":\"{}\",\"ph\":\"X\",\"ts\":{}.{:03},\"dur\":{}.{:03},\"pid\":1,"
                   "\"tid\":{}",
                   event.name, begin_ns / 1000, begin_ns % 1000, length_ns / 1000, length_ns % 1000,
                   event.row + 1);
    const auto& [what, number, bytes] = event.numbers;
    if (what != nullptr && bytes != 0)
        fmt::format_to(std::back_inserter(text), ",\"args\":{{\"{}\":{},\"bytes\":{}}}", what,
                       number, bytes);
    else if (what != nullptr)
        fmt::format_to(std::back_inserter(text), ",\"args\":{{\"{}\":{}}}", what, number);
    text += '}';
}

}  // namespace

std::string_view trace_cause_name(TraceCause cause) noexcept {
    return cause_names[static_cast<std::size_t>(cause)];
}

class StepTrace::Impl {
  public:
    Impl(const std::filesystem::path& file, std::function<void(const std::string&)> warn)
        : file_(file,
                "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,"
                "\"args\":{\"name\":\"spillway\"}}",
                least_room_bytes),
          warn_(std::move(warn)),
          ring_(ring_events) {
        batch_.reserve(batch_events);
        text_.reserve(batch_events * most_event_bytes);
        thread_ = std::thread([this] { write_events(); });
    }

    std::size_t add_lane(const TraceLane& lane) {
        const std::lock_guard lock(mutex_);
        lane_names_.push_back(lane.name);
        return clock_.add(lane);
    }

    std::size_t add_row(RowKind kind, std::vector<std::size_t> lanes, std::string name) {
        const std::lock_guard lock(mutex_);
        Row row;
        row.name = name.empty() ? lane_names_.at(lanes.front()) : std::move(name);
        row.kind = kind;
        row.lanes = std::move(lanes);
        rows_.push_back(std::move(row));
        return rows_.size() - 1;
    }

    void start() {
        const std::lock_guard lock(mutex_);
        started_ = true;
        start_ns_ = now_ns();
        clock_.start(start_ns_);
        for (auto& row : rows_)
            row.event.begin_ns = start_ns_;
    }

    /// What is under way ends here, for the trace.
    void stop() {
        const std::lock_guard lock(mutex_);
        if (!clock_.is_running())
            return;
        const auto at_ns = now_ns();
        clock_.stop(at_ns);
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            if (rows_[row].open && rows_[row].kind != RowKind::wait)
                put(rows_[row].event, row, at_ns);
        }
    }

    void begin(std::size_t index, const char* name, const TraceNumbers& numbers) {
        const std::lock_guard lock(mutex_);
        const auto at_ns = now_ns();
        auto& row = rows_[index];
        if (row.open)
            close(index, at_ns, TraceCause::other);
        if (row.kind == RowKind::work)
            clock_.work_begins(row.lanes.front(), at_ns);
        else if (row.kind == RowKind::wait)
            for (const auto lane : row.lanes)
                clock_.wait_begins(lane, index, at_ns);
        row.open = true;
        row.event = {name, numbers, at_ns, 0, index};
    }

    void end(std::size_t index, TraceCause cause) {
        const std::lock_guard lock(mutex_);
        if (rows_[index].open)
            close(index, now_ns(), cause);
    }

    void drop(std::size_t index) {
        const std::lock_guard lock(mutex_);
        auto& row = rows_[index];
        if (std::exchange(row.open, false) && row.kind == RowKind::work)
            clock_.work_ends(row.lanes.front(), now_ns());
    }

    const TraceSummary& finish() {
        if (summary_)
            return *summary_;
        stop();
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            filled_.notify_one();
        }
        thread_.join();
        {
            const std::lock_guard lock(mutex_);
            summary_ = summarise();
        }
        try {
            if (started_)
                file_.publish([this](std::uint64_t events) { return tail(events); });
            tell_early_end();
        } catch (const std::exception& error) {
            tell(error.what());
            count_events(0);
        }
        summary_->failure = failure_;
        return *summary_;
    }

  private:
    void close(std::size_t index, std::uint64_t at_ns, TraceCause cause) {
        auto& row = rows_[index];
        row.open = false;
        if (row.kind == RowKind::work)
            clock_.work_ends(row.lanes.front(), at_ns);
        if (row.kind == RowKind::wait) {
            for (const auto lane : row.lanes)
                clock_.wait_ends(lane, index, cause, at_ns);
            row.event.name = trace_cause_name(cause).data();
            if (at_ns - row.event.begin_ns < least_wait_ns)
                return;
        }
        if (clock_.is_running())
            put(row.event, index, at_ns);
    }

    void put(Event event, std::size_t row, std::uint64_t at_ns) {
        event.row = row;
        event.end_ns = at_ns;
        ++seen_;
        if (count_ == ring_.size())
            return;
        ring_[(first_ + count_) % ring_.size()] = event;
        if (++count_ % batch_events == 0)
            filled_.notify_one();
    }

    /// The thread that writes: waits for a batch, or the end.
    void write_events() {
        while (take_batch()) {
            text_.clear();
            for (const auto& event : batch_)
                append_event(text_, event, start_ns_);
            file_.append(text_);
            tell_early_end();
        }
    }

    void tell_early_end() {
        if (!file_.failure().empty() && failure_.empty())
            tell(file_.failure() + "; it ends there, and the run goes on");
    }

    /// False at the end.
    bool take_batch() {
        std::unique_lock lock(mutex_);
        filled_.wait(lock, [this] { return stopping_ || count_ >= batch_events; });
        batch_.clear();
        for (; count_ > 0 && batch_.size() < batch_events; --count_) {
            batch_.push_back(ring_[first_]);
            first_ = (first_ + 1) % ring_.size();
        }
        return !batch_.empty();
    }

    void tell(const std::string& what) {
        failure_ = "the trace " + file_.path().string() + ": " + what;
        warn_(failure_);
    }

    TraceSummary summarise() const {
        TraceSummary summary;
        summary.file = file_.path();
        summary.wall_s = seconds(clock_.wall_ns());
        for (std::size_t lane = 0; lane < lane_names_.size(); ++lane) {
            TraceLaneTimes times;
            times.name = lane_names_[lane];
            times.busy_s = seconds(clock_.times(lane).busy_ns);
            for (std::size_t cause = 0; cause < trace_causes; ++cause)
                times.idle_s[cause] = seconds(clock_.times(lane).idle_ns[cause]);
            for (std::size_t row = 0; row < rows_.size(); ++row) {
                if (rows_[row].kind == RowKind::work && rows_[row].lanes.front() == lane)
                    times.rows.push_back(row + 1);
            }
            summary.lanes.push_back(std::move(times));
        }
        return summary;
    }

    void count_events(std::uint64_t events) {
        summary_->events = events;
        summary_->dropped_events = seen_ - events;
    }

    /// Names of rows, and what the lanes come to, of a file with so many events.
    std::string tail(std::uint64_t events) {
        const std::lock_guard lock(mutex_);  // rows may still be used, and added
        count_events(events);
        std::string text;
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            const Json name{{"name", "thread_name"},
                            {"ph", "M"},
                            {"pid", 1},
                            {"tid", row + 1},
                            {"args", {{"name", rows_[row].name}}}};
            const Json order{{"name", "thread_sort_index"},
                             {"ph", "M"},
                             {"pid", 1},
                             {"tid", row + 1},
                             {"args", {{"sort_index", row}}}};
            text += ",\n" + name.dump() + ",\n" + order.dump();
        }
        auto lanes = Json::array();
        for (const auto& lane : summary_->lanes) {
            auto idle = Json::object();
            for (std::size_t cause = 0; cause < trace_causes; ++cause)
                idle[std::string(cause_names[cause])] = lane.idle_s[cause];
            lanes.push_back({{"name", lane.name},
                             {"tids", lane.rows},
                             {"busy_s", lane.busy_s},
                             {"idle_s", std::move(idle)}});
        }
        const Json other{{"wall_s", summary_->wall_s},
                         {"events", summary_->events},
                         {"dropped_events", summary_->dropped_events},
                         {"lanes", std::move(lanes)}};
        return text + "\n],\"otherData\":" + other.dump() + "}\n";
    }

    detail::TraceFile file_;  // the writing thread's, then of whoever finishes
    std::function<void(const std::string&)> warn_;
    std::string failure_;
    std::vector<Event> batch_;
    std::string text_;

    std::mutex mutex_;  ///< guards all below
    std::condition_variable filled_;
    std::vector<std::string> lane_names_;
    std::vector<Row> rows_;
    detail::LaneClock clock_;
    std::vector<Event> ring_;
    std::size_t first_ = 0;
    std::size_t count_ = 0;
    std::uint64_t seen_ = 0;
    std::uint64_t start_ns_ = 0;  ///< written before the first event is there
    bool started_ = false;
    bool stopping_ = false;

    std::optional<TraceSummary> summary_;
    std::thread thread_;
};

void TraceRow::begin(const char* name, TraceNumbers numbers) const noexcept {
    if (trace_ != nullptr)
        trace_->impl_->begin(row_, name, numbers);
}
void TraceRow::end() const noexcept {
    end_wait(TraceCause::other);
}
void TraceRow::drop() const noexcept {
    if (trace_ != nullptr)
        trace_->impl_->drop(row_);
}
void TraceRow::begin_wait() const noexcept {
    begin("", {});
}
void TraceRow::end_wait(TraceCause cause) const noexcept {
    if (trace_ != nullptr)
        trace_->impl_->end(row_, cause);
}

std::size_t StepTrace::memory_bytes() noexcept {
    return (ring_events + batch_events) * sizeof(Event) + batch_events * most_event_bytes;
}

StepTrace::StepTrace(std::filesystem::path file, std::function<void(const std::string&)> warn)
    : impl_(std::make_unique<Impl>(file, std::move(warn))) {}
StepTrace::~StepTrace() {
    finish();
}
std::size_t StepTrace::add_lane(TraceLane lane) {
    return impl_->add_lane(lane);
}
TraceRow StepTrace::add_row(std::size_t lane, std::string name) {
    return {this, impl_->add_row(RowKind::work, {lane}, std::move(name))};
}
TraceRow StepTrace::add_wait_row(std::size_t lane, std::string name) {
    return add_wait_row(std::vector{lane}, std::move(name));
}
TraceRow StepTrace::add_wait_row(std::vector<std::size_t> lanes, std::string name) {
    return {this, impl_->add_row(RowKind::wait, std::move(lanes), std::move(name))};
}
TraceRow StepTrace::add_mark_row(std::string name) {
    return {this, impl_->add_row(RowKind::mark, {}, std::move(name))};
}
void StepTrace::start() {
    impl_->start();
}
void StepTrace::stop() {
    impl_->stop();
}
const TraceSummary& StepTrace::finish() {
    return impl_->finish();
}

}  // namespace spillway::offload
