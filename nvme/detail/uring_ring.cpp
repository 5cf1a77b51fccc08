// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/uring_ring.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <numeric>
#include <system_error>
#include <thread>

#include <fmt/format.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include "nvme/detail/error_name.h"

namespace spillway::nvme::detail {

namespace {

constexpr std::size_t most_piece_bytes = std::size_t{1} << 30;  // the kernel's limit of one buffer

/// What stood in the way of locking the memory that the kernel is to keep at hand.
std::string memory_note(int error, std::size_t locked_bytes, std::size_t needed_bytes) {
    std::string limit;
    rlimit locked = {};
    if (error == ENOMEM && ::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 &&
        locked.rlim_cur != RLIM_INFINITY)
        limit = fmt::format(
            " (RLIMIT_MEMLOCK allows {} bytes, {} are needed: raise it with `ulimit "
            "-l` or docker's `--ulimit memlock=-1`)",
            locked.rlim_cur, needed_bytes);
    const std::string how_much =
        locked_bytes == 0
            ? "are not registered"
            : fmt::format("are registered for {} of {} bytes alone", locked_bytes, needed_bytes);
    return fmt::format(
        "I/O buffers {} with io_uring, which costs some processor time per request: {}{}", how_much,
        error_name(error), limit);
}

std::size_t sum_of(std::span<const iovec> vectors) {
    return std::accumulate(vectors.begin(), vectors.end(), std::size_t{0},
                           [](std::size_t sum, const iovec& one) { return sum + one.iov_len; });
}

/// The next number of pieces to try where `tried` were too many: what the limit leaves by itself,
/// then half, since others of this user draw on it too.
std::size_t fewer(std::span<const iovec> tried) {
    rlimit locked = {};
    std::size_t count = tried.size() - 1;
    if (::getrlimit(RLIMIT_MEMLOCK, &locked) != 0 || sum_of(tried) <= locked.rlim_cur)
        return tried.size() / 2;
    while (count > 0 && sum_of(tried.first(count)) > locked.rlim_cur)
        --count;
    return count;
}

}  // namespace

UringRing::UringRing(unsigned entries, unsigned flags, unsigned kernel_thread_idle_ms) {
    io_uring_params parameters = {};
    parameters.flags = flags;
    parameters.sq_thread_idle = kernel_thread_idle_ms;
    // liburing returns negated errnos and leaves errno itself alone.
    const int result = io_uring_queue_init_params(entries, &ring_, &parameters);
    if (result < 0)
        throw std::system_error(-result, std::generic_category(), "io_uring_setup");
}

UringRing::~UringRing() {
    drain();
    io_uring_queue_exit(&ring_);
}

void UringRing::drain() noexcept {
    // Closing a ring does not wait for the drive. What the kernel never took cannot move memory. A
    // drive that does not answer for two minutes has been given up by the kernel's own time limits.
    constexpr unsigned most_polls = 120'000;
    // The kernel's own thread takes what it was told of sooner or later: so all of it, now.
    const bool is_taken_anyway = (ring_.flags & IORING_SETUP_SQPOLL) != 0;
    std::array<BackendCompletion, 64> ignored = {};
    bool woken = false;
    for (unsigned i = 0; in_flight_ > (is_taken_anyway ? 0 : gathered()) && i < most_polls; ++i) {
        if (reap(ignored, woken) != 0)
            continue;
        if (is_taken_anyway)
            io_uring_submit(&ring_);
        io_uring_get_events(&ring_);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::string UringRing::register_memory(std::span<const std::span<std::byte>> memory) {
    std::vector<FixedPiece> pieces;
    std::vector<iovec> vectors;
    std::size_t total_bytes = 0;
    for (std::span<std::byte> rest : memory) {
        total_bytes += rest.size();
        while (!rest.empty()) {
            const auto piece = rest.first(std::min(rest.size(), most_piece_bytes));
            pieces.push_back({piece, static_cast<int>(vectors.size())});
            vectors.push_back({piece.data(), piece.size()});
            rest = rest.subspan(piece.size());
        }
    }
    if (vectors.empty())
        return {};
    int refusal = 0;
    std::span<const iovec> tried = vectors;
    while (!tried.empty()) {
        const int result =
            io_uring_register_buffers(&ring_, tried.data(), static_cast<unsigned>(tried.size()));
        if (result >= 0)
            break;
        refusal = -result;
        tried = tried.first(refusal == ENOMEM ? fewer(tried) : 0);
    }
    pieces.resize(tried.size());
    std::sort(pieces.begin(), pieces.end(), [](const FixedPiece& a, const FixedPiece& b) {
        return a.memory.data() < b.memory.data();
    });
    fixed_memory_ = std::move(pieces);
    return refusal == 0 ? "" : memory_note(refusal, sum_of(tried), total_bytes);
}

std::string UringRing::register_files(std::span<DirectFile* const> files) {
    std::vector<int> descriptors;
    std::vector<std::pair<int, int>> indices;
    for (const DirectFile* file : files) {
        indices.emplace_back(file->descriptor(), static_cast<int>(descriptors.size()));
        descriptors.push_back(file->descriptor());
    }
    if (descriptors.empty())
        return {};
    const int result = io_uring_register_files(&ring_, descriptors.data(),
                                               static_cast<unsigned>(descriptors.size()));
    if (result < 0)
        return fmt::format(
            "{} files are not registered with io_uring, which costs some processor "
            "time per request: {}",
            descriptors.size(), error_name(-result));
    std::sort(indices.begin(), indices.end());
    fixed_files_ = std::move(indices);
    return {};
}

/// In the ring's table, or -1.
int UringRing::file_index(int descriptor) const noexcept {
    const auto file =
        std::lower_bound(fixed_files_.begin(), fixed_files_.end(), std::pair(descriptor, 0));
    return file != fixed_files_.end() && file->first == descriptor ? file->second : -1;
}

/// The index of the registered piece that holds all of the operation's memory, or -1.
int UringRing::fixed_piece_of(const BackendOperation& operation) const noexcept {
    const auto behind = std::upper_bound(
        fixed_memory_.begin(), fixed_memory_.end(), operation.data,
        [](const std::byte* at, const FixedPiece& one) { return at < one.memory.data(); });
    if (behind == fixed_memory_.begin())
        return -1;
    const FixedPiece& piece = *std::prev(behind);
    const auto offset = static_cast<std::size_t>(operation.data - piece.memory.data());
    const bool inside =
        offset < piece.memory.size() && operation.length_bytes <= piece.memory.size() - offset;
    return inside ? piece.index : -1;
}

void UringRing::prepare(io_uring_sqe* entry, const BackendOperation& operation) const {
    const int index = file_index(operation.file->descriptor());
    const int target = index >= 0 ? index : operation.file->descriptor();
    const auto length = static_cast<unsigned>(operation.length_bytes);
    const auto offset = operation.offset_bytes;
    const int piece = fixed_piece_of(operation);
    switch (operation.operation) {
        case IoOperation::read:
            if (piece >= 0)
                io_uring_prep_read_fixed(entry, target, operation.data, length, offset, piece);
            else
                io_uring_prep_read(entry, target, operation.data, length, offset);
            break;
        case IoOperation::write:
            if (piece >= 0)
                io_uring_prep_write_fixed(entry, target, operation.data, length, offset, piece);
            else
                io_uring_prep_write(entry, target, operation.data, length, offset);
            break;
        case IoOperation::flush:
            io_uring_prep_fsync(entry, target, IORING_FSYNC_DATASYNC);
            break;
    }
    if (index >= 0)
        io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(entry, operation.id);
}

bool UringRing::gather(const BackendOperation& operation) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr)
        return false;
    prepare(entry, operation);
    ++in_flight_;
    return true;
}

bool UringRing::gather_wake(int event) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr)
        return false;
    io_uring_prep_poll_add(entry, event, POLLIN);
    io_uring_sqe_set_data64(entry, wake_id);
    return true;
}

std::size_t UringRing::reap(std::span<BackendCompletion> completions, bool& woken) {
    constexpr unsigned batch = 64;
    std::array<io_uring_cqe*, batch> entries = {};
    const auto most = static_cast<unsigned>(std::min<std::size_t>(batch, completions.size()));
    const unsigned ready = io_uring_peek_batch_cqe(&ring_, entries.data(), most);
    std::size_t count = 0;
    for (unsigned i = 0; i < ready; ++i) {
        if (entries[i]->user_data == wake_id)
            woken = true;
        else
            completions[count++] = {entries[i]->user_data, entries[i]->res};
    }
    io_uring_cq_advance(&ring_, ready);
    in_flight_ -= count;
    return count;
}

}  // namespace spillway::nvme::detail
