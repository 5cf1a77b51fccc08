// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cuda_event.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace spillway::cuda {
namespace {

/// Who waits for it sleeps: a thread that spins would take a processor from the optimizer.
constexpr unsigned waited_for = driver::event_without_timing | driver::event_blocking;

}  // namespace

void CudaStreamLog::fail(std::uint64_t call, std::exception_ptr failure) {
    const std::scoped_lock lock(mutex_);
    fail_locked(call, std::move(failure));
}

void CudaStreamLog::fail_locked(std::uint64_t call, std::exception_ptr failure) {
    if (failed_call_ != 0 && failed_call_ <= call)
        return;
    failed_call_ = call;
    failure_ = std::move(failure);
}

void CudaStreamLog::depend(std::uint64_t call, std::shared_ptr<CudaStreamLog> other,
                           std::uint64_t of_other) {
    const std::scoped_lock lock(mutex_);
    dependences_.push_back({call, std::move(other), of_other});
}

std::exception_ptr CudaStreamLog::failure_before(std::uint64_t call) {
    std::unique_lock lock(mutex_);
    // In order, and each goes once it was looked at, so that streams which waited for each other
    // many times cost no more than that.
    while (!dependences_.empty() && dependences_.front().call < call) {
        const Dependence first = dependences_.front();
        // Streams look at each other. One of them may look at this one meanwhile, and does not get
        // past `first` without its answer.
        lock.unlock();
        auto failure = first.other->failure_before(first.of_other);
        lock.lock();
        if (failure)
            fail_locked(first.call, std::move(failure));
        if (!dependences_.empty() && dependences_.front().call == first.call)
            dependences_.pop_front();
    }
    return failed_call_ != 0 && failed_call_ < call ? failure_ : nullptr;
}

bool CudaStreamLog::failed() const {
    const std::scoped_lock lock(mutex_);
    return failed_call_ != 0;
}

CudaEventState::CudaEventState(std::shared_ptr<CudaCore> core, std::shared_ptr<CudaStreamLog> log,
                               std::uint64_t call)
    : core_(std::move(core)),
      log_(std::move(log)),
      call_(call),
      event_(core_->take_event(waited_for)) {}

CudaEventState::~CudaEventState() {
    core_->return_event(event_, waited_for);
}

bool CudaEventState::done() const {
    const auto scope = core_->current();
    const auto result = core_->driver()->event_query(event_);
    // A lost context has no more to wait for; wait() says what happened.
    return result != driver::not_ready;
}

void CudaEventState::wait() {
    // The driver forbids it: the host function may be what the event waits for.
    if (log_->running.load() == std::this_thread::get_id())
        throw std::logic_error(
            fmt::format("device {}: a host function waits for an event of the stream it runs on",
                        core_->name()));
    wait_for_device("waiting for an event");
    if (const auto failure = this->failure())
        std::rethrow_exception(failure);
}

void CudaEventState::wait_for_device(std::string_view purpose) const {
    const auto scope = core_->current();
    core_->check(core_->driver()->event_synchronize(event_), "cuEventSynchronize", purpose);
}

}  // namespace spillway::cuda
