// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// What a request costs the processor, by backend: per request with small ones, per GB with large
// ones. Real time is the drive's; look at the counters, which are of the whole process.
//
//     nvme_submission [--benchmark_filter=...]      files lie in the current folder for the run
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>
#include <time.h>
#include <unistd.h>

#include "nvme/direct_file.h"
#include "nvme/huge_page_arena.h"
#include "nvme/io_backend.h"
#include "nvme/io_queue.h"

namespace {

using namespace spillway::nvme;

constexpr std::size_t depth = 32;
constexpr std::uint64_t file_bytes = std::uint64_t{64} << 20;

double processor_seconds() {
    timespec now = {};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Completes everything at once and moves nothing: what remains is the queue's own work.
class NullBackend final : public IoBackend {
  public:
    [[nodiscard]] std::string_view name() const noexcept override { return "null"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return ::depth; }
    std::size_t submit(std::span<const BackendOperation> operations) override {
        for (const BackendOperation& one : operations)
            done_.push_back({one.id, static_cast<std::int64_t>(one.length_bytes)});
        return operations.size();
    }
    std::size_t wait(std::span<BackendCompletion> completions) override {
        while (done_.empty() && !woken_.exchange(false))
            woken_.wait(false);
        const std::size_t count = std::min(completions.size(), done_.size());
        std::copy_n(done_.begin(), count, completions.begin());
        done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(count));
        return count;
    }
    void wake() noexcept override {
        woken_.store(true);
        woken_.notify_one();
    }

  private:
    std::vector<BackendCompletion> done_;
    std::atomic<bool> woken_ = false;
};

/// A file of written blocks that vanishes with its descriptor.
DirectFile make_file(IoQueue& queue, std::span<std::byte> memory) {
    const auto path =
        std::filesystem::current_path() / ("spillway.submission." + std::to_string(::getpid()));
    DirectFile file(path, OpenMode::create_exclusive, DirectMode::automatic);
    std::filesystem::remove(path);
    for (std::uint64_t at = 0; at < file_bytes; at += memory.size())
        queue.submit(IoRequest::make_write(file, at, memory)).wait().throw_if_error();
    return file;
}

std::unique_ptr<IoBackend> backend_of(const std::string& name) {
    if (name == "null")
        return std::make_unique<NullBackend>();
    UringOptions uring;
    if (name == "io_uring-thread")
        uring.submission = UringOptions::Submission::kernel_thread;
    return make_backend(name == "io_uring-thread" ? BackendKind::io_uring : *backend_kind(name),
                        depth, uring);
}

/// Reads of `block_bytes`, `depth` of them in flight.
void reads(benchmark::State& state, const std::string& name, std::size_t block_bytes) {
    try {
        const HugePageArena arena(depth * block_bytes);
        IoQueue filler(make_backend(BackendKind::threads, 4), {});
        DirectFile file = make_file(filler, arena.bytes());
        IoQueue::Options options{.depth = depth, .max_operation_bytes = block_bytes};
        options.fixed = {{arena.bytes()}, {&file}};
        IoQueue queue(backend_of(name), options);
        std::array<IoTicket, depth> tickets;
        std::uint64_t number = 0;
        const double before_s = processor_seconds();
        for ([[maybe_unused]] auto _ : state) {
            IoTicket& ticket = tickets[number % depth];
            ticket.wait().throw_if_error();
            ticket = queue.submit(IoRequest::make_read(
                file, number * block_bytes % file_bytes,
                arena.bytes().subspan(number % depth * block_bytes, block_bytes)));
            ++number;
        }
        for (IoTicket& ticket : tickets)
            ticket.wait().throw_if_error();
        const double used_s = processor_seconds() - before_s;
        const auto requests = static_cast<double>(number);
        state.counters["cpu_us_per_request"] = used_s * 1e6 / requests;
        state.counters["cpu_s_per_gb"] =
            used_s * 1e9 / (requests * static_cast<double>(block_bytes));
        state.SetBytesProcessed(static_cast<std::int64_t>(number * block_bytes));
    } catch (const std::exception& error) {
        state.SkipWithError(error.what());
    }
}

/// The caller's share alone: what submit() takes before it returns.
void submit_alone(benchmark::State& state) {
    const HugePageArena arena(4096);
    IoQueue filler(make_backend(BackendKind::threads, 4), {});
    DirectFile file = make_file(filler, arena.bytes());
    IoQueue queue(std::make_unique<NullBackend>(), {.depth = depth});
    std::array<IoTicket, depth> tickets;
    std::uint64_t number = 0;
    const auto memory = arena.bytes().first(4096);
    for ([[maybe_unused]] auto _ : state) {
        const std::size_t slot = number++ % depth;
        state.PauseTiming();
        tickets[slot].wait().throw_if_error();
        state.ResumeTiming();
        tickets[slot] = queue.submit(IoRequest::make_read(file, 0, memory));
    }
}

}  // namespace

int main(int count, char** texts) {
    benchmark::Initialize(&count, texts);
    if (benchmark::ReportUnrecognizedArguments(count, texts))
        return 1;
    for (const std::string name : {"null", "io_uring", "io_uring-thread", "libaio", "threads"})
        for (const std::size_t block_bytes : {std::size_t{4096}, std::size_t{1} << 20})
            benchmark::RegisterBenchmark(
                ("reads/" + name + "/" + std::to_string(block_bytes)).c_str(), reads, name,
                block_bytes)
                ->UseRealTime();
    benchmark::RegisterBenchmark("submit_alone", submit_alone);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
