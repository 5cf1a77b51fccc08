// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/nccl_communicator.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "cuda/driver.h"
#include "cuda/kernel_stream.h"
#include "cuda/nccl_library.h"

namespace spillway::cuda {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds between_looks{1};

std::string library_of(const std::string& asked) {
    return asked.empty() ? std::string(NcclLibrary::default_name) : asked;
}

/// Why a group has ended; looked at inside streams, where neither CUDA nor NCCL may be called.
class Ending {
  public:
    /// The first reason stays.
    void set(const std::string& why) {
        const std::scoped_lock lock(mutex_);
        if (why_.empty())
            why_ = why;
    }
    [[nodiscard]] bool known() const {
        const std::scoped_lock lock(mutex_);
        return !why_.empty();
    }
    void throw_if_known() const {
        const std::scoped_lock lock(mutex_);
        if (!why_.empty())
            throw CommunicationFailed(why_);
    }

  private:
    mutable std::mutex mutex_;
    std::string why_;
};

KernelStream& kernels_of(Stream& stream) {
    if (auto* const kernels = stream.kernels())
        return *kernels;
    throw std::invalid_argument("NCCL: the stream belongs to no GPU; use one of the rank's own");
}

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(const NcclRank& options, Device& device)
        : library_(NcclLibrary::load(library_of(options.library))),
          rank_(options.rank),
          ranks_(options.ranks),
          patience_(std::chrono::duration_cast<Clock::duration>(
              std::chrono::duration<double>(options.patience_s))),
          stream_(device.create_stream("nccl")) {
        join(options);
        watcher_ = std::thread([this] { watch(); });
    }

    ~NcclCommunicator() override {
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return operations_.empty() || ending_->known(); });
            closing_ = true;
            changed_.notify_all();
        }
        watcher_.join();
        try {
            if (handle_ != nullptr)
                in_context("destroy", [&] { (*library_)->destroy(handle_); });
        } catch (const DriverError&) {
            // A lost context takes it along.
        }
    }
    NcclCommunicator(const NcclCommunicator&) = delete;
    NcclCommunicator& operator=(const NcclCommunicator&) = delete;

    unsigned rank() const noexcept override { return rank_; }
    unsigned ranks() const noexcept override { return ranks_; }

    void all_gather(Stream& stream, const std::byte* share, std::byte* all,
                    std::size_t share_bytes) override {
        MemoryUses uses;
        uses.reads("share", share, share_bytes);
        uses.writes("all", all, share_bytes * ranks_);
        queue(stream, "ncclAllGather", uses, [&](driver::StreamHandle on) {
            return (*library_)->all_gather(share, all, share_bytes, nccl::uint8, handle_, on);
        });
    }

    void reduce_scatter(Stream& stream, const float* all, float* share,
                        std::size_t share_elements) override {
        MemoryUses uses;
        uses.reads("all", all, share_elements * ranks_);
        uses.writes("share", share, share_elements);
        queue(stream, "ncclReduceScatter", uses, [&](driver::StreamHandle on) {
            return (*library_)->reduce_scatter(all, share, share_elements, nccl::float32, nccl::sum,
                                               handle_, on);
        });
    }

    void all_reduce(Stream& stream, float* data, std::size_t elements) override {
        MemoryUses uses;
        uses.writes("data", data, elements);
        queue(stream, "ncclAllReduce", uses, [&](driver::StreamHandle on) {
            return (*library_)->all_reduce(data, data, elements, nccl::float32, nccl::sum, handle_,
                                           on);
        });
    }

    void broadcast(Stream& stream, std::byte* data, std::size_t bytes, unsigned root) override {
        check_root(root);
        MemoryUses uses;
        uses.writes("data", data, bytes);
        queue(stream, "ncclBroadcast", uses, [&](driver::StreamHandle on) {
            return (*library_)->broadcast(data, data, bytes, nccl::uint8, static_cast<int>(root),
                                          handle_, on);
        });
    }

  private:
    /// What was queued and is not known to be over.
    struct Operation {
        std::string what;
        Event begin, end;
        std::optional<Clock::time_point> began;  ///< when that was seen
    };

    [[nodiscard]] std::string own_side(std::string_view what) const {
        return fmt::format("rank {} of {}: {}", rank_, ranks_, what);
    }
    [[nodiscard]] std::string late(std::string_view what) const {
        return own_side(fmt::format(
            "{}: not every rank came within {:.3g} s; see what the others say, then start all "
            "ranks again from the last commit",
            what, std::chrono::duration<double>(patience_).count()));
    }

    void in_context(const char* name, const std::function<void()>& call) {
        kernels_of(*stream_).call_library(name, {}, [&](driver::StreamHandle) { call(); });
    }

    /// Waits until NCCL has done with a call that it may go on with by itself.
    [[nodiscard]] nccl::Result settled(nccl::Result result, const Clock::time_point until) {
        while (result == nccl::in_progress && Clock::now() < until) {
            std::this_thread::sleep_for(between_looks);
            if (const auto asked = (*library_)->state(handle_, &result); asked != nccl::success)
                return asked;
        }
        return result;
    }

    /// Of a call made now: nothing, or why the group ends with it.
    [[nodiscard]] std::string outcome(std::string_view call, nccl::Result result) {
        result = settled(result, Clock::now() + patience_);
        if (result == nccl::success)
            return {};
        return result == nccl::in_progress ? late(call)
                                           : own_side(library_->describe(call, result, handle_));
    }

    /// What is in flight ends without having been done. The context is current.
    void abort(const std::string& why) {
        ending_->set(why);
        if (handle_ != nullptr)
            (*library_)->abort(std::exchange(handle_, nullptr));
        changed_.notify_all();
    }

    void join(const NcclRank& options) {
        // Not blocking: a rank that does not come must not keep the others for ever.
        nccl::Config config;
        config.blocking = 0;
        in_context("join", [&] {
            const auto result = (*library_)->join(&handle_, static_cast<int>(ranks_), options.id,
                                                  static_cast<int>(rank_), &config);
            if (const auto why = outcome("ncclCommInitRankConfig", result); !why.empty())
                abort(why);
        });
        ending_->throw_if_known();
    }

    template <typename Call>
    void queue(Stream& stream, const char* function, const MemoryUses& uses, const Call& call) {
        auto& kernels = kernels_of(stream);
        {
            const std::scoped_lock lock(mutex_);
            ++calls_;
            if (!ending_->known()) {
                Operation operation{
                    fmt::format("{} (call {})", function, calls_), stream.record(), {}, {}};
                bool was_made = false;
                kernels.call_library(function, uses.all(), [&](driver::StreamHandle on) {
                    was_made = true;
                    if (const auto why = outcome(operation.what, call(on)); !why.empty())
                        abort(why);
                });
                if (!was_made)  // The others' next call must not meet this rank's.
                    in_context("abort", [&] {
                        abort(own_side(operation.what + ": its stream had failed before"));
                    });
                operation.end = stream.record();
                operations_.push_back(std::move(operation));
                changed_.notify_all();
            }
        }
        stream.launch(function, [ending = ending_] { ending->throw_if_known(); });
    }

    /// Why the group ends now, if it does: by what NCCL says, or because an operation has begun and
    /// does not come to its end.
    [[nodiscard]] std::string look() {
        auto result = nccl::success;
        if (const auto asked = (*library_)->state(handle_, &result); asked != nccl::success)
            result = asked;
        if (result != nccl::success && result != nccl::in_progress)
            return own_side(library_->describe(operations_.front().what, result, handle_));
        while (!operations_.empty() && operations_.front().end.done())
            operations_.pop_front();
        if (operations_.empty())
            return {};
        auto& operation = operations_.front();
        if (!operation.began && operation.begin.done())
            operation.began = Clock::now();
        const bool is_late = operation.began && Clock::now() - *operation.began > patience_;
        return is_late ? late(operation.what) : std::string();
    }

    void watch() {
        std::unique_lock lock(mutex_);
        try {
            while (goes_on(lock))
                if (const auto why = look(); !why.empty())
                    in_context("abort", [&] { abort(why); });
        } catch (const DriverError& error) {
            // With its context lost a device executes nothing any more.
            ending_->set(own_side(error.what()));
            changed_.notify_all();
        }
    }

    /// Waits until there is something to look at, and a while where there was.
    [[nodiscard]] bool goes_on(std::unique_lock<std::mutex>& lock) {
        changed_.notify_all();
        if (!operations_.empty() && !ending_->known())
            changed_.wait_for(lock, between_looks, [&] { return closing_; });
        changed_.wait(lock, [&] { return closing_ || !operations_.empty() || ending_->known(); });
        return !closing_ && !ending_->known();
    }

    const std::shared_ptr<const NcclLibrary> library_;
    const unsigned rank_, ranks_;
    const Clock::duration patience_;
    const std::unique_ptr<Stream> stream_;  ///< by which the device's context is reached
    const std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();

    std::mutex mutex_;  ///< guards what follows; held during NCCL's calls, so that none meets abort
    std::condition_variable changed_;
    nccl::CommunicatorHandle handle_ = nullptr;  ///< null once aborted
    std::deque<Operation> operations_;
    std::uint64_t calls_ = 0;
    bool closing_ = false;
    std::thread watcher_;
};

}  // namespace

nccl::UniqueId make_nccl_id(const std::string& library) {
    const auto loaded = NcclLibrary::load(library_of(library));
    nccl::UniqueId id{};
    if (const auto result = (*loaded)->unique_id(&id); result != nccl::success)
        throw CommunicationFailed(loaded->describe("ncclGetUniqueId", result, nullptr));
    return id;
}

std::unique_ptr<Communicator> make_nccl_communicator(const NcclRank& options, Device& device) {
    if (options.rank >= options.ranks)
        throw std::invalid_argument(fmt::format("rank {} of {}: ranks count from 0 to one less",
                                                options.rank, options.ranks));
    return std::make_unique<NcclCommunicator>(options, device);
}

}  // namespace spillway::cuda
