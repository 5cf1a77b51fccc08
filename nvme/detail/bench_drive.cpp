// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/bench_drive.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nvme/detail/metering_backend.h"

namespace spillway::nvme::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t fill_block_bytes = std::size_t{1} << 20;
constexpr std::size_t fill_depth = 8;

/// xorshift64: G. Marsaglia, "Xorshift RNGs", 2003. No drive or file system can compress it.
void fill_random(std::span<std::byte> bytes) {
    std::uint64_t state = 0x9e3779b97f4a7c15U;
    for (std::size_t at = 0; at + sizeof state <= bytes.size(); at += sizeof state) {
        state ^= state << 13U;
        state ^= state >> 7U;
        state ^= state << 17U;
        std::memcpy(bytes.data() + at, &state, sizeof state);
    }
}

/// Room is taken while the file has a name, since a file system that cannot reserve is written to
/// by it; whatever happens, the name goes.
DirectFile make_nameless(const fs::path& folder, std::uint64_t bytes) {
    struct Unlink {
        fs::path path;
        ~Unlink() { ::unlink(path.c_str()); }
    };
    const fs::path path = folder / fmt::format("spillway.bench.{}", ::getpid());
    ::unlink(path.c_str());  // of a killed process that had this number
    DirectFile file(path, OpenMode::create_exclusive, DirectMode::automatic);
    const Unlink nameless{path};
    file.preallocate(bytes);
    return file;
}

double cached_fraction(const DirectFile& file, std::uint64_t bytes) {
    constexpr std::size_t page_bytes = 4096;
    void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
    if (mapped == MAP_FAILED)
        return 1;  // not known to be absent
    std::vector<unsigned char> pages((bytes + page_bytes - 1) / page_bytes);
    const bool known = ::mincore(mapped, bytes, pages.data()) == 0;
    ::munmap(mapped, bytes);
    if (!known)
        return 1;
    const auto resident = std::count_if(pages.begin(), pages.end(),
                                        [](unsigned char page) { return (page & 1U) != 0; });
    return static_cast<double>(resident) / static_cast<double>(pages.size());
}

}  // namespace

BenchPattern::BenchPattern(std::size_t longest_block_bytes)
    : arena_(period_bytes + std::max(longest_block_bytes, fill_block_bytes)) {
    fill_random(arena_.bytes().first(period_bytes));
    for (std::size_t at = period_bytes; at < arena_.size_bytes(); ++at)
        arena_.bytes()[at] = arena_.bytes()[at - period_bytes];
}

BenchDrive::BenchDrive(const fs::path& folder, std::uint64_t file_bytes,
                       const BenchPattern& pattern, const std::function<bool()>& stop)
    : folder_(folder),
      file_bytes_(file_bytes),
      pattern_(pattern),
      stop_(stop),
      file_(make_nameless(folder, file_bytes)) {}

void BenchDrive::fill(BackendKind backend) {
    IoQueue queue(make_backend(backend, fill_depth),
                  {.depth = fill_depth, .max_operation_bytes = fill_block_bytes});
    std::array<IoTicket, fill_depth> tickets;
    std::size_t slot = 0;
    for (std::uint64_t at = 0; at < file_bytes_ && !stop_(); at += fill_block_bytes) {
        const auto bytes =
            static_cast<std::size_t>(std::min<std::uint64_t>(fill_block_bytes, file_bytes_ - at));
        tickets[slot].wait().throw_if_error();
        tickets[slot] = queue.submit(IoRequest::make_write(file_, at, pattern_.at(at, bytes)));
        slot = (slot + 1) % fill_depth;
    }
    for (IoTicket& ticket : tickets)
        ticket.wait().throw_if_error();
    queue.submit(IoRequest::make_flush(file_)).wait().throw_if_error();
}

std::uint64_t BenchDrive::verify(BackendKind backend) {
    BufferPool buffers({.buffer_bytes = fill_depth * fill_block_bytes, .buffers = 1});
    const BufferLease lease = buffers.acquire();
    IoQueue queue(make_backend(backend, fill_depth), {});
    std::uint64_t at = 0;
    while (at < file_bytes_ && !stop_()) {
        const auto bytes = static_cast<std::size_t>(
            std::min<std::uint64_t>(fill_depth * fill_block_bytes, file_bytes_ - at));
        const auto found = lease.bytes().first(bytes);
        queue.submit(IoRequest::make_read(file_, at, found)).wait().throw_if_error();
        for (std::size_t done = 0; done < bytes; done += std::min(fill_block_bytes, bytes - done)) {
            const std::size_t piece = std::min(fill_block_bytes, bytes - done);
            const auto expected = pattern_.at(at + done, piece);
            const auto* const differs =
                std::mismatch(expected.begin(), expected.end(), found.data() + done).second;
            if (differs != found.data() + done + piece)
                throw std::runtime_error(fmt::format(
                    "the drive under {} gave back other data than was written: the byte at offset "
                    "{} differs; do not trust it with a run",
                    folder_.string(), at + static_cast<std::uint64_t>(differs - found.data())));
        }
        at += bytes;
    }
    return at;
}

BenchDrive::Flight BenchDrive::begin(const BenchRun& run, std::uint64_t number, BufferPool& buffers,
                                     IoQueue& queue) {
    const std::uint64_t blocks = file_bytes_ / run.block_bytes;
    const bool writes = run.traffic == StorageTraffic::write ||
                        (run.traffic == StorageTraffic::mixed && number % 2 == 1);
    const std::uint64_t shift = writes && run.traffic == StorageTraffic::mixed ? blocks / 2 : 0;
    const std::uint64_t offset = (number + shift) % blocks * run.block_bytes;
    if (writes)
        return {{},
                queue.submit(
                    IoRequest::make_write(file_, offset, pattern_.at(offset, run.block_bytes)))};
    BufferLease into = buffers.acquire();
    const auto bytes = into.bytes();
    return {std::move(into), queue.submit(IoRequest::make_read(file_, offset, bytes))};
}

BenchCount BenchDrive::run(const BenchRun& run) {
    BenchCount count;
    const auto latencies_us = std::make_shared<std::vector<float>>();
    // Room in advance: growing in the middle of a run would be measured.
    latencies_us->reserve(std::size_t{1} << 20);
    {
        BufferPool buffers({.buffer_bytes = run.block_bytes, .buffers = run.depth});
        IoQueue::Options options;
        options.depth = run.depth;
        options.max_operation_bytes = run.block_bytes;
        options.fixed = {buffers.pieces(), {&file_}};
        options.fixed.memory.push_back(pattern_.memory());
        IoQueue queue(
            std::make_unique<MeteringBackend>(make_backend(run.backend, run.depth), latencies_us),
            options);
        count.backend = queue.backend_name();
        count.notes = queue.notes();
        if (buffers.pages() == PageKind::small)
            count.notes.push_back(buffers.note());
        drive(run, buffers, queue, count);
    }
    count.latencies_us = std::move(*latencies_us);
    return count;
}

void BenchDrive::drive(const BenchRun& run, BufferPool& buffers, IoQueue& queue,
                       BenchCount& count) {
    std::vector<Flight> flights(run.depth);
    const auto start = Clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    const auto end = [&](Flight& flight) {
        const IoResult result = flight.ticket.wait();
        result.throw_if_error();
        flight = {};
        count.moved_bytes += result.moved_bytes;
        const auto window = static_cast<std::size_t>(seconds() / run.time_limit_s *
                                                     static_cast<double>(BenchCount::window_count));
        count.windows[std::min(window, BenchCount::window_count - 1)] += result.moved_bytes;
    };
    // At least one full set, so that a slow drive gives a row too.
    for (std::uint64_t number = 0; number < run.depth || (seconds() < run.time_limit_s && !stop_());
         ++number) {
        Flight& flight = flights[number % run.depth];
        end(flight);
        flight = begin(run, number, buffers, queue);
    }
    for (Flight& flight : flights)
        end(flight);
    if (run.traffic != StorageTraffic::read)
        queue.submit(IoRequest::make_flush(file_)).wait().throw_if_error();
    count.wall_s = seconds();
}

StorageBenchDrive BenchDrive::describe() const {
    return {folder_, file_bytes_, file_.is_direct(), cached_fraction(file_, file_bytes_)};
}

}  // namespace spillway::nvme::detail
