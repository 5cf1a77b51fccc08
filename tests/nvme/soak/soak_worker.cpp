// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/nvme/soak/soak_worker.h"

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace spillway::nvme::testing {

namespace {

constexpr std::size_t unit_bytes = SoakModel::unit_bytes;
constexpr auto guard = std::byte{0xa5};

[[noreturn]] void fail(const std::string& what) {
    throw std::runtime_error(what);
}

void check_guards(std::span<const std::byte> buffer, std::size_t used_bytes) {
    const auto is_guard = [](std::byte one) { return one == guard; };
    const auto before = buffer.first(SoakWorker::guard_bytes);
    const auto behind = buffer.subspan(SoakWorker::guard_bytes + used_bytes);
    if (!std::all_of(before.begin(), before.end(), is_guard) ||
        !std::all_of(behind.begin(), behind.end(), is_guard))
        fail(fmt::format("memory beside a request of {} bytes was changed", used_bytes));
}

}  // namespace

SoakCounts& SoakCounts::operator+=(const SoakCounts& other) noexcept {
    requests += other.requests;
    read_bytes += other.read_bytes;
    written_bytes += other.written_bytes;
    flushes += other.flushes;
    failures += other.failures;
    refusals += other.refusals;
    return *this;
}

SoakWorker::SoakWorker(SoakModel model, BufferPool& buffers, std::uint64_t seed)
    : model_(std::move(model)), buffers_(&buffers), random_(seed), slots_(slots) {}

/// Waits only while it holds none: two who hold all and wait for more would wait for good.
BufferLease SoakWorker::lease() {
    const bool holds_none = std::none_of(slots_.begin(), slots_.end(),
                                         [](const Slot& one) { return bool(one.memory); });
    const auto priority = random_() % 2 == 0 ? ReadPriority::demand : ReadPriority::prefetch;
    BufferLease lease = holds_none ? buffers_->acquire(priority) : buffers_->try_acquire(priority);
    std::fill(lease.bytes().begin(), lease.bytes().end(), guard);
    return lease;
}

/// A random range that nothing in flight forbids; reads may share, writes may not.
std::optional<UnitRange> SoakWorker::free_range(IoOperation operation) {
    // Small ones and large ones alike.
    const std::uint64_t most = std::uint64_t{1} << (random_() % 8);
    const UnitRange wanted{0, 1 + random_() % most};
    UnitRange range{model_.first() + random_() % (model_.units() - wanted.count + 1), wanted.count};
    for (const Slot& other : slots_) {
        const bool matters =
            other.is_busy && other.operation != IoOperation::flush &&
            (operation == IoOperation::write || other.operation == IoOperation::write);
        if (matters && range.overlaps(other.range))
            return std::nullopt;
    }
    return range;
}

/// What the queue must refuse whatever the machine.
void SoakWorker::begin_refused(IoQueue& queue, DirectFile& file, std::size_t slot) {
    const auto piece = slots_[slot].memory.bytes().subspan(1, unit_bytes);
    IoRequest request = IoRequest::make_write(file, model_.first() * unit_bytes + 1, piece);
    if (!file.is_direct())
        request.data = nullptr;
    if (queue.submit(request).wait().error.value() != EINVAL)
        fail("a request without memory or alignment was not refused");
    ++counts_.refusals;
    slots_[slot].memory = {};
}

void SoakWorker::begin(std::size_t slot, IoQueue& queue, DirectFile& file) {
    Slot& one = slots_[slot];
    const std::uint64_t kind = random_() % 100;
    one.operation = kind < 3    ? IoOperation::flush
                    : kind < 50 ? IoOperation::read
                                : IoOperation::write;
    one.memory = lease();
    if (!one.memory)
        return;
    if (kind == 99)
        return begin_refused(queue, file, slot);
    one.range = {};
    IoRequest request = IoRequest::make_flush(file);
    if (one.operation != IoOperation::flush) {
        const auto range = free_range(one.operation);
        if (!range) {
            one.memory = {};
            return;
        }
        one.range = *range;
        const auto memory = one.memory.bytes().subspan(guard_bytes, range->count * unit_bytes);
        const std::uint64_t offset = range->first * unit_bytes;
        const auto priority = random_() % 2 == 0 ? ReadPriority::demand : ReadPriority::prefetch;
        if (one.operation == IoOperation::read) {
            std::fill(memory.begin(), memory.end(), std::byte{0});
            request = IoRequest::make_read(file, offset, memory, priority);
        } else {
            one.version = model_.prepare_write(*range, memory);
            request = IoRequest::make_write(file, offset, memory);
        }
    }
    one.is_busy = true;
    one.ticket = queue.submit(request);
}

void SoakWorker::end(std::size_t slot) {
    Slot& one = slots_[slot];
    const IoResult result = one.ticket.wait();
    one.is_busy = false;
    one.ticket = {};
    const BufferLease memory = std::exchange(one.memory, {});
    const std::size_t asked = one.range.count * unit_bytes;
    const bool was_refused = one.operation == IoOperation::flush && !result.ok() &&
                             result.context.find("refused") != std::string::npos;
    ++(was_refused ? counts_.refusals : counts_.requests);
    counts_.failures += result.ok() || was_refused ? 0U : 1U;
    if (!result.ok() && result.error.value() != EIO)
        fail(fmt::format("an error that nobody made: {}", result.context));
    if (result.ok() && result.moved_bytes != asked)
        fail(fmt::format("{} bytes moved of {}, and no error", result.moved_bytes, asked));
    if (result.moved_bytes > asked)
        fail(fmt::format("{} bytes moved of {}", result.moved_bytes, asked));
    if (one.operation == IoOperation::flush) {
        counts_.flushes += result.ok() ? 1U : 0U;
        return;
    }
    check_guards(memory.bytes(), asked);
    (one.operation == IoOperation::read ? counts_.read_bytes : counts_.written_bytes) +=
        result.moved_bytes;
    if (one.operation == IoOperation::write) {
        if (result.ok())
            model_.written(one.range, one.version);
        else
            model_.write_failed(one.range, one.version);
    } else if (result.ok()) {
        if (const auto wrong =
                model_.check_read(one.range, memory.bytes().subspan(guard_bytes, asked));
            !wrong.empty())
            fail(wrong);
    }
}

SoakCounts SoakWorker::run(IoQueue& queue, DirectFile& file, const std::function<bool()>& stop) {
    counts_ = {};
    while (!stop() && file.flush_error() == 0) {
        const std::size_t slot = random_() % slots;
        if (slots_[slot].is_busy)
            end(slot);
        begin(slot, queue, file);
    }
    for (std::size_t slot = 0; slot < slots; ++slot)
        if (slots_[slot].is_busy)
            end(slot);
    return counts_;
}

void SoakWorker::initialise(IoQueue& queue, DirectFile& file) {
    const BufferLease lease = buffers_->acquire();
    const auto memory = lease.bytes().first(most_bytes);
    const std::uint64_t step = most_bytes / unit_bytes;
    for (std::uint64_t at = 0; at < model_.units(); at += step) {
        const std::uint64_t count = std::min(step, model_.units() - at);
        for (std::uint64_t i = 0; i < count; ++i)
            SoakModel::fill(memory.subspan(i * unit_bytes, unit_bytes), model_.first() + at + i, 0);
        queue
            .submit(IoRequest::make_write(file, (model_.first() + at) * unit_bytes,
                                          memory.first(count * unit_bytes)))
            .wait()
            .throw_if_error();
    }
}

void SoakWorker::verify(IoQueue& queue, DirectFile& file) {
    const BufferLease lease = buffers_->acquire();
    const auto memory = lease.bytes().first(most_bytes);
    const std::uint64_t step = most_bytes / unit_bytes;
    for (std::uint64_t at = 0; at < model_.units(); at += step) {
        const UnitRange range{model_.first() + at, std::min(step, model_.units() - at)};
        const auto piece = memory.first(range.count * unit_bytes);
        queue.submit(IoRequest::make_read(file, range.first * unit_bytes, piece))
            .wait()
            .throw_if_error();
        if (const auto wrong = model_.check_read(range, piece); !wrong.empty())
            fail("at the end of a queue: " + wrong);
    }
}

}  // namespace spillway::nvme::testing
