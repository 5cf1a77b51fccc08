// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuda/communicator.h"

namespace spillway::cuda {
namespace {

using Clock = std::chrono::steady_clock;

/// One rank's side of one operation.
struct Call {
    const char* operation = "";
    std::size_t bytes = 0;  ///< of a share, or of all data where there are no shares
    unsigned root = 0;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
};

bool together(const Call& a, const Call& b) {
    return std::strcmp(a.operation, b.operation) == 0 && a.bytes == b.bytes && a.root == b.root;
}

/// The calls of all ranks, by rank.
using Calls = std::vector<Call>;

/// Where ranks meet for each operation.
class Meetings {
  public:
    explicit Meetings(const SharedMemoryRanks& options)
        : patience_(std::chrono::duration_cast<Clock::duration>(
              std::chrono::duration<double>(options.patience_s))),
          calls_made_(options.ranks) {}

    [[nodiscard]] unsigned ranks() const noexcept {
        return static_cast<unsigned>(calls_made_.size());
    }

    /// Waits for all ranks, does this rank's part, and waits for all parts: before that neither may
    /// what was read change nor what was written be read.
    template <typename Work>
    void meet(unsigned rank, std::uint64_t number, const Call& call, const Work& work) {
        std::unique_lock lock(mutex_);
        // Whoever failed has gone, and its memory may have too.
        if (!failure_.empty())
            throw CommunicationFailed(failure_);
        auto& meeting = meetings_[number];
        meeting.calls.resize(ranks());
        meeting.calls[rank] = call;
        meeting.came.push_back(rank);
        meeting.complete = meeting.came.size() == ranks();
        changed_.notify_all();
        wait_for_all(lock, number, meeting, call);
        require_together(meeting);
        lock.unlock();
        work(meeting.calls);
        lock.lock();
        ++meeting.done;
        changed_.notify_all();
        changed_.wait(lock, [&] { return meeting.done == ranks(); });
        if (++meeting.left == ranks())
            meetings_.erase(number);
    }

    /// `rank` does not come to a call that it had made.
    void miss(unsigned rank, std::uint64_t number, const Call& call) {
        const std::scoped_lock lock(mutex_);
        if (failure_.empty())
            failure_ = fmt::format(
                "{} (call {}) of {} ranks: the stream of rank {} failed before it came to it",
                call.operation, number + 1, ranks(), rank);
        changed_.notify_all();
    }

    /// `rank` makes no more calls than these.
    void leave(unsigned rank, std::uint64_t calls) {
        const std::scoped_lock lock(mutex_);
        calls_made_[rank] = calls;
        changed_.notify_all();
    }

  private:
    struct Meeting {
        Calls calls;
        std::vector<unsigned> came;
        bool complete = false;
        unsigned done = 0;
        unsigned left = 0;
    };

    void wait_for_all(std::unique_lock<std::mutex>& lock, std::uint64_t number,
                      const Meeting& meeting, const Call& call) {
        const auto until = Clock::now() + patience_;
        const auto over = [&] {
            return meeting.complete || !failure_.empty() || !gone(number, meeting).empty();
        };
        const bool in_time = changed_.wait_until(lock, until, over);
        if (meeting.complete)
            return;
        if (!failure_.empty())
            throw CommunicationFailed(failure_);
        const auto missing = in_time ? gone(number, meeting) : absent(meeting);
        fail(fmt::format("{} (call {}) of {} ranks: rank {} {}", call.operation, number + 1,
                         ranks(), fmt::join(missing, ", "),
                         in_time ? "has left without making it"
                                 : fmt::format("did not come within {:.3g} s",
                                               std::chrono::duration<double>(patience_).count())));
    }

    void require_together(const Meeting& meeting) {
        for (unsigned rank = 1; rank < ranks(); ++rank) {
            const auto& own = meeting.calls[rank];
            const auto& first = meeting.calls[0];
            if (!together(own, first))
                fail(fmt::format(
                    "the ranks do not agree: rank 0 calls {} of {} bytes (root {}), rank {} calls "
                    "{} of {} bytes (root {})",
                    first.operation, first.bytes, first.root, rank, own.operation, own.bytes,
                    own.root));
        }
    }

    [[noreturn]] void fail(const std::string& why) {
        if (failure_.empty())
            failure_ = why;
        changed_.notify_all();
        throw CommunicationFailed(failure_);
    }

    [[nodiscard]] std::vector<unsigned> absent(const Meeting& meeting) const {
        std::vector<unsigned> missing;
        for (unsigned rank = 0; rank < ranks(); ++rank)
            if (std::find(meeting.came.begin(), meeting.came.end(), rank) == meeting.came.end())
                missing.push_back(rank);
        return missing;
    }
    /// Those that will never come.
    [[nodiscard]] std::vector<unsigned> gone(std::uint64_t number, const Meeting& meeting) const {
        auto missing = absent(meeting);
        std::erase_if(missing, [&](unsigned rank) {
            return !calls_made_[rank] || *calls_made_[rank] > number;
        });
        return missing;
    }

    const Clock::duration patience_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::uint64_t, Meeting> meetings_;  ///< by number; a map: none moves while others come
    std::vector<std::optional<std::uint64_t>> calls_made_;  ///< of ranks that have left
    std::string failure_;                                   ///< the first; then nothing goes on
};

/// to[i] = the sum of `from` over ranks, `to` written for each.
template <typename From, typename To>
void sum_over_ranks(unsigned ranks, std::size_t begin, std::size_t end, const From& from,
                    const To& to) {
    for (std::size_t i = begin; i < end; ++i) {
        float sum = from(0)[i];
        for (unsigned rank = 1; rank < ranks; ++rank)
            sum += from(rank)[i];
        to(i, sum);
    }
}

/// A rank's call on its way through a stream, which drops it where it has failed.
class Attendance {
  public:
    Attendance(std::shared_ptr<Meetings> meetings, unsigned rank, std::uint64_t number,
               const Call& call)
        : meetings_(std::move(meetings)), rank_(rank), number_(number), call_(call) {}
    ~Attendance() {
        if (!came_)
            meetings_->miss(rank_, number_, call_);
    }
    Attendance(const Attendance&) = delete;
    Attendance& operator=(const Attendance&) = delete;

    template <typename Work>
    void meet(const Work& work) {
        came_ = true;
        meetings_->meet(rank_, number_, call_, work);
    }

  private:
    const std::shared_ptr<Meetings> meetings_;
    const unsigned rank_;
    const std::uint64_t number_;
    const Call call_;
    bool came_ = false;
};

const float* floats(const std::byte* data) {
    return reinterpret_cast<const float*>(data);
}
float* floats(std::byte* data) {
    return reinterpret_cast<float*>(data);
}

class SharedMemoryCommunicator final : public Communicator {
  public:
    SharedMemoryCommunicator(std::shared_ptr<Meetings> meetings, unsigned rank)
        : meetings_(std::move(meetings)), rank_(rank) {}
    ~SharedMemoryCommunicator() override { meetings_->leave(rank_, calls_); }
    SharedMemoryCommunicator(const SharedMemoryCommunicator&) = delete;
    SharedMemoryCommunicator& operator=(const SharedMemoryCommunicator&) = delete;

    unsigned rank() const noexcept override { return rank_; }
    unsigned ranks() const noexcept override { return meetings_->ranks(); }

    void all_gather(Stream& stream, const std::byte* share, std::byte* all,
                    std::size_t share_bytes) override {
        queue(stream, {.operation = "all_gather", .bytes = share_bytes, .from = share, .to = all},
              [all, share_bytes](const Calls& calls) {
                  for (std::size_t rank = 0; rank < calls.size(); ++rank)
                      if (auto* const to = all + rank * share_bytes; to != calls[rank].from)
                          std::memcpy(to, calls[rank].from, share_bytes);
              });
    }

    void reduce_scatter(Stream& stream, const float* all, float* share,
                        std::size_t share_elements) override {
        queue(stream,
              {.operation = "reduce_scatter",
               .bytes = share_elements * sizeof(float),
               .from = reinterpret_cast<const std::byte*>(all)},
              [rank = rank_, share, share_elements](const Calls& calls) {
                  sum_over_ranks(
                      static_cast<unsigned>(calls.size()), 0, share_elements,
                      [&](unsigned r) { return floats(calls[r].from) + rank * share_elements; },
                      [&](std::size_t i, float sum) { share[i] = sum; });
              });
    }

    /// Each rank adds up a part of its own and gives it to all.
    void all_reduce(Stream& stream, float* data, std::size_t elements) override {
        queue(stream,
              {.operation = "all_reduce",
               .bytes = elements * sizeof(float),
               .to = reinterpret_cast<std::byte*>(data)},
              [rank = rank_, elements](const Calls& calls) {
                  const auto ranks = calls.size();
                  sum_over_ranks(
                      static_cast<unsigned>(ranks), elements * rank / ranks,
                      elements * (rank + std::size_t{1}) / ranks,
                      [&](unsigned r) { return floats(calls[r].to); },
                      [&](std::size_t i, float sum) {
                          for (const auto& call : calls)
                              floats(call.to)[i] = sum;
                      });
              });
    }

    void broadcast(Stream& stream, std::byte* data, std::size_t bytes, unsigned root) override {
        check_root(root);
        queue(stream, {.operation = "broadcast", .bytes = bytes, .root = root, .to = data},
              [rank = rank_, root, bytes](const Calls& calls) {
                  if (rank != root && bytes != 0)
                      std::memcpy(calls[rank].to, calls[root].to, bytes);
              });
    }

  private:
    template <typename Work>
    void queue(Stream& stream, const Call& call, Work work) {
        if (stream.kernels() != nullptr)
            throw std::invalid_argument(fmt::format(
                "{} in shared memory: the stream is of a device with kernels and a memory of its "
                "own, which the host cannot touch; take ranks on 'cpu' or 'sim' devices",
                call.operation));
        const auto attendance = std::make_shared<Attendance>(meetings_, rank_, calls_++, call);
        stream.launch(call.operation,
                      [attendance, work = std::move(work)] { attendance->meet(work); });
    }

    const std::shared_ptr<Meetings> meetings_;
    const unsigned rank_;
    std::uint64_t calls_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_shared_memory_communicators(
    const SharedMemoryRanks& options) {
    if (options.ranks == 0)
        throw std::invalid_argument("a group of 0 ranks: there is at least one");
    const auto meetings = std::make_shared<Meetings>(options);
    std::vector<std::unique_ptr<Communicator>> communicators;
    for (unsigned rank = 0; rank < options.ranks; ++rank)
        communicators.push_back(std::make_unique<SharedMemoryCommunicator>(meetings, rank));
    return communicators;
}

}  // namespace spillway::cuda
