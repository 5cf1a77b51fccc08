// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// Passes over an existing file through an IoQueue, timed: what bench/storage_acceptance.py sets
// beside other programs on the same file.
//
//     nvme_transfer FILE read|write|mixed [--block BYTES] [--depth N] [--ahead N]
//                   [--backend NAME] [--memory fixed|plain] [--submission calls|thread]
//                   [--completion interrupt|polled] [--passes N]
//
// Requests are waited for in order, as who reads ahead does; --ahead more than the depth stand in
// the queue, so that the drive is kept busy whatever order it answers in.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <time.h>

#include "nvme/buffer_pool.h"
#include "nvme/direct_file.h"
#include "nvme/io_backend.h"
#include "nvme/io_queue.h"

namespace {

using namespace spillway::nvme;
using Clock = std::chrono::steady_clock;

struct Arguments {
    std::string path;
    std::string direction;
    std::size_t block_bytes = std::size_t{1} << 20;
    std::size_t depth = 32;
    std::size_t ahead = 0;
    BackendKind backend = BackendKind::automatic;
    UringOptions uring = {};
    bool is_fixed = true;
    std::uint64_t passes = 1;
};

void set(Arguments& into, std::string_view name, const std::string& value) {
    if (name == "--block") {
        into.block_bytes = std::stoull(value);
    } else if (name == "--depth") {
        into.depth = std::stoull(value);
    } else if (name == "--ahead") {
        into.ahead = std::stoull(value);
    } else if (name == "--passes") {
        into.passes = std::stoull(value);
    } else if (name == "--memory" && (value == "fixed" || value == "plain")) {
        into.is_fixed = value == "fixed";
    } else if (name == "--submission" && (value == "calls" || value == "thread")) {
        if (value == "thread")
            into.uring.submission = UringOptions::Submission::kernel_thread;
    } else if (name == "--completion" && (value == "interrupt" || value == "polled")) {
        if (value == "polled")
            into.uring.completion = UringOptions::Completion::polled;
    } else if (const auto kind = backend_kind(value); name == "--backend" && kind) {
        into.backend = *kind;
    } else {
        throw std::invalid_argument(
            fmt::format("{} {} is not understood; the head of bench/nvme_transfer.cpp "
                        "names the options",
                        name, value));
    }
}

Arguments parse(std::span<const char* const> texts) {
    if (texts.size() < 3 || texts.size() % 2 == 0)
        throw std::invalid_argument("usage: nvme_transfer FILE read|write|mixed [--NAME VALUE]...");
    Arguments arguments{.path = texts[1], .direction = texts[2]};
    if (arguments.direction != "read" && arguments.direction != "write" &&
        arguments.direction != "mixed")
        throw std::invalid_argument(
            fmt::format("{} is not read, write or mixed", arguments.direction));
    for (std::size_t i = 3; i + 1 < texts.size(); i += 2)
        set(arguments, texts[i], texts[i + 1]);
    if (arguments.block_bytes == 0 || arguments.depth == 0)
        throw std::invalid_argument("--block and --depth must be at least 1");
    return arguments;
}

double processor_seconds() {
    timespec now = {};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// xorshift64: G. Marsaglia, "Xorshift RNGs", 2003. No drive can compress it.
void fill_random(BufferPool& buffers) {
    auto state = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()) | 1U;
    std::vector<BufferLease> all;
    while (auto lease = buffers.try_acquire()) {
        const auto bytes = lease.bytes();
        for (std::size_t at = 0; at + sizeof state <= bytes.size(); at += sizeof state) {
            state ^= state << 13U;
            state ^= state >> 7U;
            state ^= state << 17U;
            std::memcpy(bytes.data() + at, &state, sizeof state);
        }
        all.push_back(std::move(lease));
    }
}

struct Figures {
    std::uint64_t bytes = 0;
    double wall_s = 0;
    double processor_s = 0;
};

/// Block `number` of the pass. Mixed traffic reads the first half of the file and overwrites the
/// second.
IoRequest request_of(const Arguments& arguments, DirectFile& file, std::span<std::byte> piece,
                     std::uint64_t number, std::uint64_t blocks) {
    const bool is_mixed = arguments.direction == "mixed";
    const bool writes = arguments.direction == "write" || (is_mixed && number % 2 == 1);
    const std::uint64_t place = number % blocks;
    const std::uint64_t block = is_mixed ? place / 2 + (writes ? blocks / 2 : 0) : place;
    const std::uint64_t offset = block * arguments.block_bytes;
    return writes ? IoRequest::make_write(file, offset, piece)
                  : IoRequest::make_read(file, offset, piece);
}

/// An operation under way and its memory.
struct Flight {
    BufferLease memory;
    IoTicket ticket;
};

Figures transfer(const Arguments& arguments, DirectFile& file, BufferPool& buffers,
                 IoQueue& queue) {
    const std::uint64_t blocks = file.size_bytes() / arguments.block_bytes / 2 * 2;
    if (blocks == 0)
        throw std::invalid_argument(
            fmt::format("{} is shorter than two blocks", file.path().string()));
    std::vector<Flight> flights(arguments.depth + arguments.ahead);
    Figures figures;
    const double processor_before_s = processor_seconds();
    const auto start = Clock::now();
    for (std::uint64_t number = 0; number < blocks * arguments.passes; ++number) {
        Flight& flight = flights[number % flights.size()];
        flight.ticket.wait().throw_if_error();
        flight.memory = {};
        flight.memory = buffers.acquire();
        flight.ticket =
            queue.submit(request_of(arguments, file, flight.memory.bytes(), number, blocks));
    }
    for (Flight& flight : flights)
        flight.ticket.wait().throw_if_error();
    figures.wall_s = std::chrono::duration<double>(Clock::now() - start).count();
    figures.processor_s = processor_seconds() - processor_before_s;
    figures.bytes = blocks * arguments.passes * arguments.block_bytes;
    return figures;
}

void run(const Arguments& arguments) {
    DirectFile file(arguments.path, OpenMode::open_existing, DirectMode::required);
    BufferPool buffers(
        {.buffer_bytes = arguments.block_bytes, .buffers = arguments.depth + arguments.ahead});
    fill_random(buffers);
    IoQueue::Options options;
    options.depth = arguments.depth;
    options.max_operation_bytes = arguments.block_bytes;
    if (arguments.is_fixed)
        options.fixed = {buffers.pieces(), {&file}};
    IoQueue queue(make_backend(arguments.backend, arguments.depth, arguments.uring), options);
    const Figures figures = transfer(arguments, file, buffers, queue);
    const bool is_huge = buffers.pages() != PageKind::small;
    for (const std::string& note : queue.notes())
        fmt::print(stderr, "note: {}\n", note);
    fmt::print(R"({{"bytes": {}, "wall_s": {:.9f}, "cpu_s": {:.9f}, "backend": "{}", )"
               R"("huge_pages": {}, "notes": {}}})"
               "\n",
               figures.bytes, figures.wall_s, figures.processor_s, queue.backend_name(), is_huge,
               queue.notes().size());
}

}  // namespace

int main(int count, char** texts) {
    try {
        run(parse({texts, static_cast<std::size_t>(count)}));
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "nvme_transfer: %s\n", error.what());
        return 1;
    }
}
