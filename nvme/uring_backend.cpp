// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/uring_backend.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "nvme/detail/error_name.h"

namespace spillway::nvme {

namespace {

constexpr std::uint64_t wake_id = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t most_depth = 4096;
constexpr std::size_t most_piece_bytes = std::size_t{1} << 30;  // the kernel's limit of one buffer

[[noreturn]] void fail(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

/// Transient refusals: a full completion ring or no memory at this moment.
bool is_back_pressure(int result) {
    return result == -EINTR || result == -EAGAIN || result == -EBUSY;
}

/// liburing returns negated errnos and leaves errno itself alone.
void set_up(unsigned entries, io_uring& ring) {
    // Without interrupting the submitter for completions (kernel 5.19); older kernels say EINVAL.
    int result = io_uring_queue_init(entries, &ring, IORING_SETUP_COOP_TASKRUN);
    if (result == -EINVAL)
        result = io_uring_queue_init(entries, &ring, 0);
    if (result < 0)
        fail(-result, "io_uring_setup");
}

/// What stood in the way of locking the memory that the kernel is to keep at hand.
std::string memory_note(int error, std::size_t needed_bytes) {
    std::string limit;
    rlimit locked = {};
    if (error == ENOMEM && ::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 &&
        locked.rlim_cur != RLIM_INFINITY)
        limit = fmt::format(
            " (RLIMIT_MEMLOCK allows {} bytes, {} are needed: raise it with `ulimit "
            "-l` or docker's `--ulimit memlock=-1`)",
            locked.rlim_cur, needed_bytes);
    return fmt::format(
        "I/O buffers are not registered with io_uring, which costs some processor "
        "time per request: {}{}",
        detail::error_name(error), limit);
}

}  // namespace

UringBackend::UringBackend(std::size_t depth) : depth_(std::min(depth, most_depth)) {
    wake_event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_event_ < 0)
        fail(errno, "eventfd");
    try {
        set_up(static_cast<unsigned>(depth_) + 1, ring_);
    } catch (...) {
        ::close(wake_event_);
        throw;
    }
    try {
        check_features();
    } catch (...) {
        io_uring_queue_exit(&ring_);
        ::close(wake_event_);
        throw;
    }
}

void UringBackend::check_features() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    if (probe == nullptr)
        fail(ENOSYS, "the kernel's io_uring cannot say what it supports (needs Linux 5.6)");
    bool complete = true;
    for (const int operation :
         {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC, IORING_OP_POLL_ADD})
        complete = complete && io_uring_opcode_supported(probe, operation) != 0;
    io_uring_free_probe(probe);
    if (!complete)
        fail(ENOSYS, "the kernel's io_uring lacks read, write, fsync or poll (needs Linux 5.6)");
}

UringBackend::~UringBackend() {
    drain();
    io_uring_queue_exit(&ring_);
    ::close(wake_event_);
}

void UringBackend::drain() noexcept {
    // Closing a ring does not wait for the drive. What the kernel never took cannot move memory. A
    // drive that does not answer for two minutes has been given up by the kernel's own time limits.
    constexpr unsigned most_polls = 120'000;
    std::array<BackendCompletion, 64> ignored = {};
    for (unsigned i = 0; in_flight_ > io_uring_sq_ready(&ring_) && i < most_polls; ++i) {
        if (reap(ignored) != 0)
            continue;
        io_uring_get_events(&ring_);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

std::vector<std::string> UringBackend::use_fixed(const FixedResources& fixed) {
    std::vector<std::string> notes;
    for (std::string note : {register_memory(fixed.memory), register_files(fixed.files)})
        if (!note.empty())
            notes.push_back(std::move(note));
    return notes;
}

std::string UringBackend::register_memory(std::span<const std::span<std::byte>> memory) {
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
    const int result =
        io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()));
    if (result < 0)
        return memory_note(-result, total_bytes);
    std::sort(pieces.begin(), pieces.end(), [](const FixedPiece& a, const FixedPiece& b) {
        return a.memory.data() < b.memory.data();
    });
    fixed_memory_ = std::move(pieces);
    return {};
}

std::string UringBackend::register_files(std::span<DirectFile* const> files) {
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
            descriptors.size(), detail::error_name(-result));
    std::sort(indices.begin(), indices.end());
    fixed_files_ = std::move(indices);
    return {};
}

/// The index of the registered piece that holds all of the operation's memory, or -1.
int UringBackend::fixed_piece_of(const BackendOperation& operation) const noexcept {
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

void UringBackend::prepare(io_uring_sqe* entry, const BackendOperation& operation) const {
    const int descriptor = operation.file->descriptor();
    const auto file =
        std::lower_bound(fixed_files_.begin(), fixed_files_.end(), std::pair(descriptor, 0));
    const bool is_fixed_file = file != fixed_files_.end() && file->first == descriptor;
    const int target = is_fixed_file ? file->second : descriptor;
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
    if (is_fixed_file)
        io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(entry, operation.id);
}

std::size_t UringBackend::submit(std::span<const BackendOperation> operations) {
    // Only gathered here: the system call in wait() hands all of them over. One that the kernel
    // does not take then stays in the ring and is offered again, never both refused and kept.
    const std::size_t wanted = std::min(operations.size(), depth_ - in_flight_);
    std::size_t taken = 0;
    while (taken < wanted) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        if (entry == nullptr)
            break;
        prepare(entry, operations[taken++]);
    }
    in_flight_ += taken;
    return taken;
}

std::size_t UringBackend::wait(std::span<BackendCompletion> completions) {
    const bool has_gathered = io_uring_sq_ready(&ring_) != 0;
    std::size_t count = has_gathered ? 0 : reap(completions);
    while (count == 0 && !woken_) {
        sleep_until_something_ends();
        count = reap(completions);
    }
    woken_ = false;
    return count;
}

void UringBackend::sleep_until_something_ends() {
    if (!wake_armed_) {
        io_uring_sqe* entry = io_uring_get_sqe(&ring_);
        if (entry != nullptr) {
            io_uring_prep_poll_add(entry, wake_event_, POLLIN);
            io_uring_sqe_set_data64(entry, wake_id);
            wake_armed_ = true;
        }
    }
    const int result = io_uring_submit_and_wait(&ring_, 1);
    if (result >= 0 || result == -EINTR)
        return;
    if (!is_back_pressure(result))
        fail(-result, "io_uring_enter");
    // The kernel lacks memory for the request; what completes in the meantime is reaped.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::size_t UringBackend::reap(std::span<BackendCompletion> completions) {
    constexpr unsigned batch = 64;
    std::array<io_uring_cqe*, batch> entries = {};
    const auto most = static_cast<unsigned>(std::min<std::size_t>(batch, completions.size()));
    const unsigned ready = io_uring_peek_batch_cqe(&ring_, entries.data(), most);
    std::size_t count = 0;
    for (unsigned i = 0; i < ready; ++i) {
        if (entries[i]->user_data == wake_id) {
            eventfd_t ignored = 0;
            ::eventfd_read(wake_event_, &ignored);
            wake_armed_ = false;
            woken_ = true;
        } else {
            completions[count++] = {entries[i]->user_data, entries[i]->res};
        }
    }
    io_uring_cq_advance(&ring_, ready);
    in_flight_ -= count;
    return count;
}

void UringBackend::wake() noexcept {
    ::eventfd_write(wake_event_, 1);
}

}  // namespace spillway::nvme
