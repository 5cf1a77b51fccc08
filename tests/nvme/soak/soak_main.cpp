// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// Random reads, writes and flushes of random sizes from two threads through one queue after the
// other, on a backend that fails at random, against a model of what the file must hold.
//
//     nvme_soak [--seconds S] [--seed N]
//
// Exits with 1 and a sentence where anything was lost, doubled, damaged or leaked.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "nvme/buffer_pool.h"
#include "nvme/direct_file.h"
#include "nvme/io_backend.h"
#include "nvme/io_queue.h"
#include "tests/nvme/soak/soak_worker.h"
#include "tests/support/faulty_backend.h"
#include "tests/support/temporary_folder.h"

namespace {

using namespace spillway::nvme;
using namespace spillway::nvme::testing;
using spillway::testing::FaultCounts;
using spillway::testing::FaultRates;
using spillway::testing::FaultyBackend;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t file_units = (std::uint64_t{24} << 20) / SoakModel::unit_bytes;
constexpr std::size_t workers = 2;
constexpr std::size_t pool_buffers = workers * SoakWorker::slots * 2 / 3;  // they have to share
constexpr double longest_queue_s = 1.5;
constexpr std::ptrdiff_t most_growth_bytes = std::ptrdiff_t{16} << 20;
constexpr int warm_up_queues = 8;

struct Options {
    double seconds = 60;
    std::uint64_t seed = 0;
};

Options parse(int count, char** texts) {
    Options options;
    options.seed = std::random_device()();
    for (int i = 1; i < count; i += 2) {
        const std::string name = texts[i];
        if (i + 1 == count || (name != "--seconds" && name != "--seed"))
            throw std::runtime_error("usage: nvme_soak [--seconds S] [--seed N]");
        if (name == "--seconds")
            options.seconds = std::stod(texts[i + 1]);
        else
            options.seed = std::stoull(texts[i + 1]);
    }
    return options;
}

/// What must not grow with the number of queues.
struct Holdings {
    std::ptrdiff_t descriptors = 0;
    std::ptrdiff_t resident_bytes = 0;

    static Holdings now() {
        Holdings holdings;
        holdings.descriptors =
            std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
        std::ifstream memory("/proc/self/statm");
        memory >> holdings.resident_bytes >> holdings.resident_bytes;
        holdings.resident_bytes *= ::sysconf(_SC_PAGESIZE);
        return holdings;
    }
};

void expect_equal(const char* what, std::uint64_t found, std::uint64_t expected) {
    if (found != expected)
        throw std::runtime_error(fmt::format("{}: found {}, expected {}", what, found, expected));
}

class Soak {
  public:
    explicit Soak(const Options& options)
        : options_(options),
          random_(options.seed),
          buffers_({.buffer_bytes = SoakWorker::buffer_bytes,
                    .buffers = pool_buffers,
                    .kept_for_demand = 2}),
          kinds_{BackendKind::threads} {
        if (io_uring_refusal().empty())
            kinds_.push_back(BackendKind::io_uring);
        if (libaio_refusal().empty())
            kinds_.push_back(BackendKind::libaio);
        for (std::size_t i = 0; i < workers; ++i)
            workers_.emplace_back(SoakModel(i * file_units / workers, file_units / workers),
                                  buffers_, random_());
    }

    void run() {
        {
            DirectFile file(path(), OpenMode::create_or_open, DirectMode::automatic);
            IoQueue queue(make_backend(BackendKind::automatic, 8), {});
            for (SoakWorker& worker : workers_)
                worker.initialise(queue, file);
        }
        const auto end = Clock::now() + std::chrono::duration<double>(options_.seconds);
        std::optional<Holdings> before;
        for (queues_ = 0; Clock::now() < end || queues_ < 2 * warm_up_queues; ++queues_) {
            if (queues_ == warm_up_queues)
                before = Holdings::now();
            one_queue();
        }
        check_flat(*before);
    }

    [[nodiscard]] std::string summary() const {
        return fmt::format(
            "{} queues, {} requests, {} bytes read, {} written, {} flushes; {} faults injected, "
            "{} requests failed, {} refused",
            queues_, counts_.requests, counts_.read_bytes, counts_.written_bytes, counts_.flushes,
            faults_, counts_.failures, counts_.refusals);
    }

  private:
    [[nodiscard]] std::filesystem::path path() const { return folder_.path() / "data"; }

    template <class Value>
    Value pick(std::initializer_list<Value> values) {
        return values.begin()[random_() % values.size()];
    }

    [[nodiscard]] UringOptions uring_options() {
        UringOptions uring;
        if (random_() % 4 == 0)
            uring.submission = UringOptions::Submission::kernel_thread;
        if (random_() % 4 == 0)
            uring.completion = UringOptions::Completion::polled;
        return uring;
    }

    [[nodiscard]] IoQueue::Options queue_options(DirectFile& file) {
        IoQueue::Options options;
        options.depth = pick<std::size_t>({1, 3, 8, 32});
        options.max_operation_bytes = pick<std::size_t>({4096, 12288, 65536, 1 << 20});
        options.read_depth = pick<std::size_t>({0, 2});
        options.write_depth = pick<std::size_t>({0, 1, 4});
        if (random_() % 2 == 0)
            options.fixed = {buffers_.pieces(), {&file}};
        return options;
    }

    /// Some requests on one queue, then all of the file without faults.
    void one_queue() {
        const auto direct = random_() % 4 == 0 ? DirectMode::buffered : DirectMode::automatic;
        DirectFile file(path(), OpenMode::open_existing, direct);
        const auto faults = std::make_shared<FaultCounts>();
        const BackendKind kind = kinds_[random_() % kinds_.size()];
        const IoQueue::Options options = queue_options(file);
        FaultRates rates;
        if (random_() % 4 == 0)
            rates = {0, 0, 0, 0, 0};
        {
            IoQueue queue(
                std::make_unique<FaultyBackend>(make_backend(kind, options.depth, uring_options()),
                                                rates, random_(), faults),
                options);
            const SoakCounts counts = run_workers(queue, file);
            const IoStatistics statistics = queue.statistics();
            expect_equal("requests", statistics.requests, counts.requests);
            expect_equal("read bytes", statistics.read_bytes, counts.read_bytes);
            expect_equal("written bytes", statistics.written_bytes, counts.written_bytes);
            expect_equal("flushes", statistics.flushes, counts.flushes);
            expect_equal("pending requests", queue.pending().size(), 0);
            expect_equal("free buffers", buffers_.free_buffers(), pool_buffers);
            counts_ += counts;
        }
        expect_equal("operations", faults->completed.load(), faults->taken.load());
        faults_ += faults->faults.load();
        DirectFile again(path(), OpenMode::open_existing, DirectMode::automatic);
        IoQueue queue(make_backend(BackendKind::automatic, 8), {});
        for (SoakWorker& worker : workers_)
            worker.verify(queue, again);
    }

    [[nodiscard]] SoakCounts run_workers(IoQueue& queue, DirectFile& file) {
        const double length_s = std::uniform_real_distribution<>(0.1, longest_queue_s)(random_) *
                                std::min(1.0, options_.seconds / 20);
        const auto end = Clock::now() + std::chrono::duration<double>(length_s);
        std::array<SoakCounts, workers> counts;
        std::array<std::exception_ptr, workers> errors;
        {
            std::vector<std::jthread> threads;
            for (std::size_t i = 0; i < workers; ++i)
                threads.emplace_back([&, i] {
                    try {
                        counts[i] =
                            workers_[i].run(queue, file, [end] { return Clock::now() > end; });
                    } catch (...) {
                        errors[i] = std::current_exception();
                    }
                });
        }
        for (const auto& error : errors)
            if (error)
                std::rethrow_exception(error);
        SoakCounts sum;
        for (const SoakCounts& one : counts)
            sum += one;
        return sum;
    }

    void check_flat(const Holdings& before) const {
        const Holdings after = Holdings::now();
        if (after.descriptors != before.descriptors)
            throw std::runtime_error(fmt::format("{} descriptors are open, {} were",
                                                 after.descriptors, before.descriptors));
        if (after.resident_bytes - before.resident_bytes > most_growth_bytes)
            throw std::runtime_error(fmt::format("memory grew from {} to {} bytes",
                                                 before.resident_bytes, after.resident_bytes));
    }

    Options options_;
    std::mt19937_64 random_;
    spillway::testing::TemporaryFolder folder_;
    BufferPool buffers_;
    std::vector<BackendKind> kinds_;
    std::vector<SoakWorker> workers_;
    SoakCounts counts_;
    std::uint64_t faults_ = 0;
    int queues_ = 0;
};

}  // namespace

int main(int count, char** texts) {
    try {
        const Options options = parse(count, texts);
        fmt::print("nvme_soak: {} s, --seed {}\n", options.seconds, options.seed);
        std::fflush(stdout);
        Soak soak(options);
        soak.run();
        fmt::print("nvme_soak: all as it must be: {}\n", soak.summary());
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "nvme_soak: {}\n", error.what());
        return 1;
    }
}
