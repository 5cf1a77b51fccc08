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

SoakWorker::SoakWorker(SoakModel model, std::span<std::byte> memory, std::uint64_t seed)
    : model_(std::move(model)), memory_(memory), random_(seed), slots_(slots) {
    std::fill(memory_.begin(), memory_.end(), guard);
}

std::span<std::byte> SoakWorker::memory_of(std::size_t slot) const {
    return memory_.subspan(slot * (most_bytes + 2 * guard_bytes) + guard_bytes, most_bytes);
}

void SoakWorker::check_guards(std::size_t slot) const {
    const auto whole =
        memory_.subspan(slot * (most_bytes + 2 * guard_bytes), most_bytes + 2 * guard_bytes);
    const std::size_t used = slots_[slot].range.count * unit_bytes;
    const auto is_guard = [](std::byte one) { return one == guard; };
    const auto behind = whole.subspan(guard_bytes + used, guard_bytes);
    if (!std::all_of(whole.begin(), whole.begin() + guard_bytes, is_guard) ||
        !std::all_of(behind.begin(), behind.end(), is_guard))
        fail(fmt::format("memory beside a request of {} bytes was changed", used));
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
    const auto piece = memory_of(slot).subspan(1, unit_bytes);
    IoRequest request = IoRequest::make_write(file, model_.first() * unit_bytes + 1, piece);
    if (!file.is_direct())
        request.data = nullptr;
    if (queue.submit(request).wait().error.value() != EINVAL)
        fail("a request without memory or alignment was not refused");
    ++counts_.refusals;
}

void SoakWorker::begin(std::size_t slot, IoQueue& queue, DirectFile& file) {
    Slot& one = slots_[slot];
    const std::uint64_t kind = random_() % 100;
    one.operation = kind < 3    ? IoOperation::flush
                    : kind < 50 ? IoOperation::read
                                : IoOperation::write;
    if (kind == 99)
        return begin_refused(queue, file, slot);
    one.range = {};
    IoRequest request = IoRequest::make_flush(file);
    if (one.operation != IoOperation::flush) {
        const auto range = free_range(one.operation);
        if (!range)
            return;
        one.range = *range;
        const auto memory = memory_of(slot).first(range->count * unit_bytes);
        std::fill(memory_of(slot).begin() + static_cast<std::ptrdiff_t>(memory.size()),
                  memory_of(slot).end(), guard);
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
    check_guards(slot);
    (one.operation == IoOperation::read ? counts_.read_bytes : counts_.written_bytes) +=
        result.moved_bytes;
    if (one.operation == IoOperation::write) {
        if (result.ok())
            model_.written(one.range, one.version);
        else
            model_.write_failed(one.range, one.version);
    } else if (result.ok()) {
        if (const auto wrong = model_.check_read(one.range, memory_of(slot).first(asked));
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
    const auto memory = memory_of(0);
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
    const auto memory = memory_of(0);
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
