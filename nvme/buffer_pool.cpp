// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/buffer_pool.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "nvme/detail/fork_mark.h"

namespace spillway::nvme {

namespace {

constexpr std::size_t page_bytes = 4096;
// Of what is registered one by one: short, so that a limit is used up, but few in all, since old
// kernels take 1024 and each operation looks for its own.
constexpr std::size_t least_piece_bytes = std::size_t{4} << 20;
constexpr std::size_t most_pieces = 256;

// A returned buffer is out of bounds until it is leased again, where someone looks.
#if defined(__SANITIZE_ADDRESS__)
void forbid(std::span<std::byte> bytes) noexcept {
    __asan_poison_memory_region(bytes.data(), bytes.size());
}
void allow(std::span<std::byte> bytes) noexcept {
    __asan_unpoison_memory_region(bytes.data(), bytes.size());
}
#else
void forbid(std::span<std::byte>) noexcept {}
void allow(std::span<std::byte>) noexcept {}
#endif

std::size_t stride_of(std::size_t buffer_bytes) noexcept {
    return (buffer_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

const BufferPool::Options& checked(const BufferPool::Options& options) {
    if (options.buffer_bytes == 0 || options.buffers == 0)
        throw std::invalid_argument(
            fmt::format("a pool of {} buffers of {} bytes has nothing to lease", options.buffers,
                        options.buffer_bytes));
    if (options.kept_for_demand >= options.buffers)
        throw std::invalid_argument(
            fmt::format("a pool of {} buffers that keeps {} for demand leaves none to prefetches",
                        options.buffers, options.kept_for_demand));
    constexpr auto most = std::numeric_limits<std::size_t>::max() / 2;
    if (options.buffer_bytes > most || stride_of(options.buffer_bytes) > most / options.buffers)
        throw std::invalid_argument(
            fmt::format("{} buffers of {} bytes are more than an address space holds",
                        options.buffers, options.buffer_bytes));
    return options;
}

std::size_t lane_of(ReadPriority priority) noexcept {
    return priority == ReadPriority::demand ? 0 : 1;
}

}  // namespace

struct BufferLease::Shared {
    explicit Shared(const BufferPool::Options& checked_options)
        : options(checked_options),
          stride_bytes(stride_of(options.buffer_bytes)),
          arena(options.buffers * stride_bytes, options.best_pages) {
        free.reserve(options.buffers);
        for (std::size_t i = options.buffers; i-- > 0;)
            free.push_back(i);
        ::madvise(arena.bytes().data(), arena.size_bytes(), MADV_DONTFORK);
        forbid(arena.bytes());
    }
    ~Shared() {
        allow(arena.bytes());
        // In a forked child something else may lie where the memory was: it is not unmapped.
        if (!maker.is_here())
            static_cast<void>(new HugePageArena(std::move(arena)));
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

    /// A lane's next turn: nobody who asked before waits, and a buffer is there for its kind.
    [[nodiscard]] bool has_turn(std::size_t lane, std::uint64_t number) const noexcept {
        if (served[lane] != number || free.empty())
            return false;
        return lane == 0 || (served[0] == asked[0] && free.size() > options.kept_for_demand);
    }

    [[nodiscard]] BufferLease take(const std::shared_ptr<Shared>& self) noexcept {
        const std::size_t number = free.back();
        free.pop_back();
        const auto bytes = arena.bytes().subspan(number * stride_bytes, options.buffer_bytes);
        allow(bytes);
        return {self, bytes};
    }

    void give_back(std::span<std::byte> bytes) noexcept {
        forbid(bytes);
        {
            const std::lock_guard lock(mutex);
            const auto offset = static_cast<std::size_t>(bytes.data() - arena.bytes().data());
            free.push_back(offset / stride_bytes);
        }
        // All look whose turn it is: the one that was woken alone might not have it.
        changed.notify_all();
    }

    void refuse_child() const {
        if (!maker.is_here())
            throw std::system_error(EPERM, std::generic_category(),
                                    "the buffers belong to the process this one was forked from; "
                                    "make a pool of your own in the child");
    }

    const BufferPool::Options options;
    const std::size_t stride_bytes;
    HugePageArena arena;
    const detail::ForkMark maker;

    std::mutex mutex;  ///< guards the rest
    std::condition_variable changed;
    std::vector<std::size_t> free;  ///< by number, the one returned last at the end
    // By lane, demand first: waiters are served by the number at which they asked.
    std::array<std::uint64_t, 2> asked = {};
    std::array<std::uint64_t, 2> served = {};
    bool closed = false;
};

BufferLease::BufferLease(std::shared_ptr<Shared> shared, std::span<std::byte> bytes) noexcept
    : shared_(std::move(shared)), bytes_(bytes) {}

BufferLease::BufferLease(BufferLease&& other) noexcept
    : shared_(std::move(other.shared_)), bytes_(std::exchange(other.bytes_, {})) {}

BufferLease& BufferLease::operator=(BufferLease&& other) noexcept {
    BufferLease taken(std::move(other));
    std::swap(shared_, taken.shared_);
    std::swap(bytes_, taken.bytes_);
    return *this;
}

BufferLease::~BufferLease() {
    // A forked child's copy owns nothing, and its mutex may be held for good.
    if (!bytes_.empty() && shared_->maker.is_here())
        shared_->give_back(bytes_);
}

BufferPool::BufferPool(const Options& options)
    : shared_(std::make_shared<BufferLease::Shared>(checked(options))) {}

BufferPool::~BufferPool() {
    if (shared_->maker.is_here())
        close();
}

BufferLease BufferPool::acquire(ReadPriority priority) {
    shared_->refuse_child();
    const std::size_t lane = lane_of(priority);
    std::unique_lock lock(shared_->mutex);
    const std::uint64_t number = shared_->asked[lane]++;
    shared_->changed.wait(lock, [&] { return shared_->closed || shared_->has_turn(lane, number); });
    if (shared_->closed)
        return {};
    ++shared_->served[lane];
    BufferLease lease = shared_->take(shared_);
    lock.unlock();
    shared_->changed.notify_all();  // the next one may have its turn already
    return lease;
}

BufferLease BufferPool::try_acquire(ReadPriority priority) {
    shared_->refuse_child();
    const std::size_t lane = lane_of(priority);
    const std::lock_guard lock(shared_->mutex);
    if (shared_->closed || !shared_->has_turn(lane, shared_->asked[lane]))
        return {};
    return shared_->take(shared_);
}

void BufferPool::close() noexcept {
    {
        const std::lock_guard lock(shared_->mutex);
        shared_->closed = true;
    }
    shared_->changed.notify_all();
}

std::size_t BufferPool::buffers() const noexcept {
    return shared_->options.buffers;
}

std::size_t BufferPool::free_buffers() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->free.size();
}

std::size_t BufferPool::size_bytes() const noexcept {
    return shared_->arena.size_bytes();
}

std::vector<std::span<std::byte>> BufferPool::pieces() const {
    const std::size_t stride = shared_->stride_bytes;
    const std::size_t wanted =
        std::max(least_piece_bytes, shared_->options.buffers * stride / most_pieces);
    const std::size_t piece_bytes = (wanted + stride - 1) / stride * stride;
    std::vector<std::span<std::byte>> pieces;
    auto rest = shared_->arena.bytes().first(shared_->options.buffers * stride);
    while (!rest.empty()) {
        pieces.push_back(rest.first(std::min(rest.size(), piece_bytes)));
        rest = rest.subspan(pieces.back().size());
    }
    return pieces;
}

PageKind BufferPool::pages() const noexcept {
    return shared_->arena.pages();
}

const std::string& BufferPool::note() const noexcept {
    return shared_->arena.note();
}

}  // namespace spillway::nvme
