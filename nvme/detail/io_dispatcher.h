// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "nvme/detail/io_meter.h"
#include "nvme/detail/io_watchdog.h"
#include "nvme/detail/open_requests.h"
#include "nvme/detail/request_lanes.h"
#include "nvme/detail/request_state.h"
#include "nvme/io_backend.h"
#include "nvme/io_queue.h"

namespace spillway::nvme::detail {

/// The thread behind an IoQueue, and the only one that calls the backend (but for wake()). It cuts
/// requests into operations, keeps the backend full, and judges every completion:
///
///     inbox_ --> lanes_ --cut--> ready_ --submit--> backend --complete--> retire, or ready_
///     again
///
/// An operation holds a slot from cut to retirement; its backend id is the slot's number.
class IoDispatcher {
  public:
    IoDispatcher(std::unique_ptr<IoBackend> backend, IoQueue::Options options);
    ~IoDispatcher();                             ///< ends every request first
    IoDispatcher(const IoDispatcher&) = delete;  // its thread points at it
    IoDispatcher& operator=(const IoDispatcher&) = delete;

    /// From any thread. After a breakdown of the backend the request ends at once with its error.
    void submit(std::shared_ptr<RequestState> request);
    [[nodiscard]] IoStatistics statistics() const { return meter_.statistics(); }
    [[nodiscard]] std::string_view backend_name() const noexcept { return backend_name_; }
    [[nodiscard]] bool moves_device_memory() const noexcept { return moves_device_memory_; }
    [[nodiscard]] std::vector<PendingIo> pending() const { return open_.list(); }
    [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }

  private:
    struct Operation {
        std::shared_ptr<RequestState> request;  ///< empty: the slot is free
        std::uint64_t offset_bytes = 0;
        std::byte* data = nullptr;
        std::size_t length_bytes = 0;
        unsigned stalls = 0;  ///< attempts in a row that moved nothing
        bool in_backend = false;
    };
    enum class Next { work, end };

    void run();
    Next collect();
    void cut_pending();
    void cut_one(const std::shared_ptr<RequestState>& request);
    void push_ready();
    void await_completions();
    void complete(const BackendCompletion& completion);
    void finish_flush(std::uint32_t slot, std::int64_t result);
    void finish_transfer(std::uint32_t slot, std::int64_t result, std::string_view detail);
    void retry(std::uint32_t slot, int error);
    void fail(std::uint32_t slot, int error, std::string_view detail);
    void retire(std::uint32_t slot);
    void break_down(const std::system_error& error) noexcept;
    void tell_breakdown(RequestState& request) const;
    void finish(RequestState& request);

    const std::size_t max_operation_bytes_;
    std::unique_ptr<IoBackend> backend_;
    const std::string backend_name_;
    const bool moves_device_memory_;
    const std::vector<std::string> notes_;
    CompletionSignal* const ended_;  ///< null: nobody asks
    IoMeter meter_;
    OpenRequests open_;
    std::unique_ptr<IoWatchdog> watchdog_;  ///< empty without a deadline

    std::mutex mutex_;  ///< guards the next five, and wake() against the backend's destruction
    std::vector<std::shared_ptr<RequestState>> inbox_;
    bool wants_wake_ = false;  ///< the dispatcher sleeps (or is about to) and has room for more
    bool stopping_ = false;
    std::error_code breakdown_;
    std::string breakdown_text_;

    // The dispatcher thread's own.
    std::vector<std::shared_ptr<RequestState>> arrived_;
    RequestLanes lanes_;
    std::vector<Operation> operations_;
    std::vector<std::uint32_t> free_slots_;
    std::deque<std::uint32_t> ready_;  ///< slots to be given to the backend, in order
    std::size_t in_backend_ = 0;
    unsigned refusals_ = 0;  ///< in a row, with nothing in flight
    std::vector<BackendOperation> batch_;
    std::vector<BackendCompletion> completions_;

    std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace spillway::nvme::detail
