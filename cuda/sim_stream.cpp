// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/sim_stream.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <pthread.h>

namespace spillway::cuda {

SimStream::SimStream(std::string_view name, std::shared_ptr<SimCore> core)
    : name_(name), core_(std::move(core)) {
    std::seed_seq seeds{core_->options.seed, core_->streams.fetch_add(1)};
    random_.seed(seeds);
    worker_ = std::thread([this] { work(); });
    constexpr std::size_t longest_thread_name = 15;
    ::pthread_setname_np(worker_.native_handle(), name_.substr(0, longest_thread_name).c_str());
}

SimStream::~SimStream() {
    {
        const std::scoped_lock lock(mutex_);
        closing_ = true;
    }
    changed_.notify_one();
    worker_.join();
}

// ---------------------------------------------------------------- the caller's side

void SimStream::copy_to_device(std::byte* device_to, const std::byte* host_from,
                               std::size_t bytes) {
    copy("copy_to_device", CopyDirection::to_device,
         {device_to, bytes, host_from, bytes, bytes, 1});
}

void SimStream::copy_to_host(std::byte* host_to, const std::byte* device_from, std::size_t bytes) {
    copy("copy_to_host", CopyDirection::to_host, {host_to, bytes, device_from, bytes, bytes, 1});
}

void SimStream::copy_rows_to_device(std::byte* device_to, std::size_t to_pitch,
                                    const std::byte* host_from, std::size_t from_pitch,
                                    std::size_t row_bytes, std::size_t rows) {
    copy("copy_rows_to_device", CopyDirection::to_device,
         {device_to, to_pitch, host_from, from_pitch, row_bytes, rows});
}

void SimStream::copy(std::string_view call, CopyDirection direction, const RowCopy& copy) {
    copy.check(call);
    check_pairing(call, direction, copy);
    enqueue(Copy{direction, copy});
}

void SimStream::check_pairing(std::string_view call, CopyDirection direction,
                              const RowCopy& copy) const {
    struct Side {
        std::string_view word;
        const std::byte* data;
        std::size_t bytes;
    };
    Side on_device{"destination", copy.to, copy.to_extent_bytes()};
    Side on_host{"source", copy.from, copy.from_extent_bytes()};
    if (direction == CopyDirection::to_host)
        std::swap(on_device, on_host);
    if (on_device.bytes == 0)
        return;

    const auto describe = [&](const Side& side, std::string_view problem) {
        return fmt::format("{} on stream '{}' of {}: the {}, {} bytes at {}, {}", call, name_,
                           core_->options.name, side.word, side.bytes,
                           static_cast<const void*>(side.data), problem);
    };
    if (!core_->memory.overlaps(on_device.data, 1))
        throw std::invalid_argument(describe(on_device, "is host memory; device memory is needed"));
    if (!core_->memory.allocated(on_device.data, on_device.bytes))
        throw std::invalid_argument(
            describe(on_device, "is freed device memory or crosses the end of its buffer"));
    if (core_->memory.overlaps(on_host.data, on_host.bytes))
        throw std::invalid_argument(describe(on_host, "is device memory; host memory is needed"));
}

void SimStream::launch(const char*, std::function<void()> kernel) {
    enqueue(Kernel{std::move(kernel)});
}

Event SimStream::record() {
    auto state = std::make_shared<SimEventState>(name_, worker_.get_id());
    enqueue(Record{state});
    return Event(std::move(state));
}

void SimStream::wait(const Event& event) {
    enqueue(Wait{event});
}

void SimStream::synchronize() {
    record().wait();
}

void SimStream::enqueue(decltype(Operation::what) what) {
    if (std::this_thread::get_id() == worker_.get_id())
        throw std::logic_error(fmt::format(
            "stream '{}': a kernel called the stream it runs on; call from outside", name_));
    {
        const std::scoped_lock lock(mutex_);
        queue_.push_back({std::move(what), Clock::now()});
    }
    changed_.notify_one();
}

// ---------------------------------------------------------------- the worker's side

void SimStream::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
        if (queue_.empty())
            return;
        Operation operation = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        execute(operation);
        lock.lock();
    }
}

void SimStream::execute(Operation& operation) {
    // Not the time of now: a worker that woke up late, or was held up by a busy machine, catches up
    // with the link it stands for, which would have gone on.
    ready_ = std::max(ready_, operation.queued_at);
    delay();
    std::visit([this](auto& what) { execute(what); }, operation.what);
}

void SimStream::execute(Copy& copy) {
    if (failure_)
        return;
    SimLink& link = copy.direction == CopyDirection::to_device ? core_->to_device : core_->to_host;
    const auto begin = Clock::now();
    const auto end = link.transfer(copy.rows.bytes(), ready_);
    // The memcpy comes first and costs what it costs; only the rest of the link's time is slept
    // away.
    copy.rows.execute();
    const auto copied = Clock::now();
    const bool paced = link.bytes_per_s() != 0;
    if (paced)
        wait_precisely(end);
    ready_ = paced ? end : copied;

    const std::chrono::duration<double> on_link(
        paced ? static_cast<double>(copy.rows.bytes()) / link.bytes_per_s() : 0.0);
    core_->counters.count_copy(
        copy.direction, copy.rows.bytes(),
        paced ? std::chrono::duration_cast<std::chrono::nanoseconds>(on_link) : copied - begin);
}

void SimStream::execute(Kernel& kernel) {
    // A dropped kernel is destroyed here too, before any event behind it happens.
    const std::function<void()> run = std::exchange(kernel.run, nullptr);
    if (failure_)
        return;
    const auto begin = Clock::now();
    try {
        run();
    } catch (...) {
        failure_ = std::current_exception();
    }
    ready_ = Clock::now();
    core_->counters.count_kernel(ready_ - begin);
}

void SimStream::execute(Record& record) {
    record.state->happen(ready_, failure_);
}

void SimStream::execute(Wait& wait) {
    // A failed stream waits as well: its own events promise that what it waited for has happened.
    try {
        wait.event.wait();
    } catch (...) {
        if (!failure_)
            failure_ = std::current_exception();
    }
    const auto* state = dynamic_cast<const SimEventState*>(wait.event.state().get());
    if (state != nullptr)
        ready_ = std::max(ready_, state->happened_at());
    else
        ready_ = Clock::now();
}

void SimStream::delay() {
    if (core_->options.max_random_delay_s <= 0)
        return;
    std::uniform_real_distribution<double> seconds(0, core_->options.max_random_delay_s);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds(random_)));
    ready_ = Clock::now();
}

}  // namespace spillway::cuda
