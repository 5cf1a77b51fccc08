// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/drive_probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/measure/median.h"
#include "nvme/direct_file.h"
#include "nvme/io_queue.h"

namespace spillway::engine {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t least_buffers_bytes = std::size_t{2} << 20;
constexpr std::size_t alignment_bytes = std::size_t{1} << 20;
constexpr std::uint64_t least_file_bytes = std::uint64_t{8} << 20;
constexpr std::size_t rounds = 3;

enum class Traffic { read, write, mixed };

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A file that vanishes with its descriptor.
nvme::DirectFile open_nameless(const fs::path& folder) {
    const auto path = folder / fmt::format("spillway.probe.{}", ::getpid());
    fs::remove(
        path);  // of a killed process that had this number and had not come to the next lines
    nvme::DirectFile file(path, nvme::OpenMode::create_exclusive, nvme::DirectMode::automatic);
    fs::remove(path);
    return file;
}

/// Two at a time must fit, and a whole number of the file's units.
std::size_t operation_bytes(const offload::DriveIo& io, std::span<std::byte> buffers) {
    const auto most = std::min(io.operation_bytes, buffers.size() / 2);
    constexpr std::size_t unit_bytes = 4096;
    return std::max(most - most % unit_bytes, unit_bytes);
}

/// Keeps one operation in flight per buffer, over the file again and again.
class Traffics {
  public:
    Traffics(nvme::DirectFile& file, nvme::IoQueue& queue, std::span<std::byte> buffers,
             const offload::DriveIo& io)
        : file_(file),
          queue_(queue),
          buffers_(buffers),
          operation_bytes_(operation_bytes(io, buffers)),
          slots_(std::clamp<std::size_t>(buffers.size() / operation_bytes_, 1, io.depth)) {}

    /// Writes the file from its start until `file_bytes` or `limit_s` are reached, which becomes
    /// its size for the runs.
    std::uint64_t fill(std::uint64_t file_bytes, double limit_s) {
        operations_ = file_bytes / operation_bytes_;
        // As deep as a slow drive can serve in the time: what is in flight is waited for.
        const auto start = Clock::now();
        static_cast<void>(run_operations(Traffic::write, 0, 1));
        const auto in_time = 4 * limit_s / std::max(seconds_since(start), 1e-9);
        slots_ = static_cast<std::size_t>(std::clamp(in_time, 1.0, static_cast<double>(slots_)));
        const auto done = run_operations(Traffic::write, limit_s, operations_);
        operations_ = std::max<std::uint64_t>(done, 1);
        return operations_ * operation_bytes_;
    }

    /// Bytes per second over `limit_s` seconds; what is written counts only once flushed.
    double run(Traffic traffic, double limit_s) {
        const auto start = Clock::now();
        const auto done = run_operations(traffic, limit_s, ~std::uint64_t{0});
        return static_cast<double>(done * operation_bytes_) / seconds_since(start);
    }

  private:
    std::uint64_t run_operations(Traffic traffic, double limit_s, std::uint64_t most) {
        const auto start = Clock::now();
        std::vector<nvme::IoTicket> tickets(slots_);
        std::uint64_t submitted = 0;
        while (submitted < most && (submitted < slots_ || seconds_since(start) < limit_s)) {
            auto& ticket = tickets[submitted % slots_];
            ticket.wait().throw_if_error();
            ticket = queue_.submit(request(traffic, submitted));
            ++submitted;
        }
        for (auto& ticket : tickets)
            ticket.wait().throw_if_error();
        if (traffic != Traffic::read)
            queue_.submit(nvme::IoRequest::make_flush(file_)).wait().throw_if_error();
        return submitted;
    }

    nvme::IoRequest request(Traffic traffic, std::uint64_t number) {
        const auto buffer =
            buffers_.subspan((number % slots_) * operation_bytes_, operation_bytes_);
        const bool writes =
            traffic == Traffic::write || (traffic == Traffic::mixed && number % 2 == 1);
        // Reads and writes of mixed traffic run half a file apart.
        const auto shift = writes && traffic == Traffic::mixed ? operations_ / 2 : 0;
        const auto place = ((number + shift) % operations_) * operation_bytes_;
        return writes ? nvme::IoRequest::make_write(file_, place, buffer)
                      : nvme::IoRequest::make_read(file_, place, buffer);
    }

    nvme::DirectFile& file_;
    nvme::IoQueue& queue_;
    std::span<std::byte> buffers_;
    std::size_t operation_bytes_;
    std::size_t slots_;
    std::uint64_t operations_ = 1;
};

DriveRates measure(Traffics& traffics, double limit_s) {
    std::vector<double> read(rounds);
    std::vector<double> write(rounds);
    std::vector<double> mixed(rounds);
    const double slice_s = limit_s / static_cast<double>(3 * rounds);
    // In turn, so that what disturbs the drive for a while disturbs all three.
    for (std::size_t round = 0; round < rounds; ++round) {
        write[round] = traffics.run(Traffic::write, slice_s);
        read[round] = traffics.run(Traffic::read, slice_s);
        mixed[round] = traffics.run(Traffic::mixed, slice_s);
    }
    return {median(read), median(write), median(mixed)};
}

}  // namespace

void fill_incompressible(std::span<std::byte> bytes, std::uint64_t seed) noexcept {
    std::uint64_t state = seed | 1;
    for (std::size_t i = 0; i + sizeof state <= bytes.size(); i += sizeof state) {
        // xorshift64: Marsaglia 2003, "Xorshift RNGs".
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::memcpy(bytes.data() + i, &state, sizeof state);
    }
}

DriveProbeResult probe_drive(const DriveProbeRequest& request) {
    if (request.buffers.size() < least_buffers_bytes)
        throw std::invalid_argument(
            fmt::format("the drive's probe needs buffers of {} bytes, not {}", least_buffers_bytes,
                        request.buffers.size()));
    DriveProbeResult result;
    const auto start = Clock::now();
    // Half of what is free stays free: the run itself is about to need it.
    auto file_bytes = std::min(request.file_bytes, nvme::available_bytes(request.folder) / 2);
    file_bytes -= file_bytes % alignment_bytes;
    if (file_bytes < least_file_bytes) {
        result.notes.push_back(
            fmt::format("the drive of {} was not measured: it has no room for a "
                        "file of {} bytes beside the run",
                        request.folder.string(), least_file_bytes));
        return result;
    }
    auto file = open_nameless(request.folder);
    if (!file.is_direct())
        result.notes.push_back(
            fmt::format("{} does not allow direct I/O: its rates are those of the "
                        "page cache",
                        request.folder.string()));
    file.preallocate(file_bytes);
    const auto& io = request.io;
    nvme::IoQueue queue(nvme::make_backend(io.backend, io.depth), {io.depth, io.operation_bytes});
    fill_incompressible(request.buffers, 0x5eed);
    Traffics traffics(file, queue, request.buffers, io);
    // The first write to reserved room is slower than all later ones: it does not count.
    if (const auto filled = traffics.fill(file_bytes, request.time_limit_s / 3);
        filled < file_bytes)
        result.notes.push_back(
            fmt::format("the drive was measured on {} bytes only: it is slow", filled));
    const auto rest_s =
        std::max(request.time_limit_s / 2, request.time_limit_s - seconds_since(start));
    result.rates = measure(traffics, rest_s);
    return result;
}

}  // namespace spillway::engine
