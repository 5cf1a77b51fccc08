// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/compute/compute_pool.h"

#include <atomic>
#include <optional>
#include <stdexcept>
#include <string>

#include <cblas.h>
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>

namespace spillway::engine {
namespace {

int checked_threads(std::size_t threads) {
    if (threads == 0 || threads > most_threads)
        throw std::invalid_argument("a compute pool of " + std::to_string(threads) +
                                    " threads was asked for: choose 1 to " +
                                    std::to_string(most_threads));
    return static_cast<int>(threads);
}

/// Without leave TBB makes no more threads than there are processors, and prints that it does not.
std::optional<oneapi::tbb::global_control> beyond_processors(std::size_t threads) {
    if (threads <= static_cast<std::size_t>(oneapi::tbb::info::default_concurrency()))
        return std::nullopt;
    return std::make_optional<oneapi::tbb::global_control>(
        oneapi::tbb::global_control::max_allowed_parallelism, threads);
}

cpu_optim::Isa checked_isa(cpu_optim::Isa isa) {
    return cpu_optim::parse_isa(cpu_optim::isa_name(isa));
}

}  // namespace

class ComputePool::Impl {
  public:
    Impl(std::size_t threads, cpu_optim::Isa isa)
        : more_threads_(beyond_processors(threads)),
          arena_(checked_threads(threads)),
          threads_(threads),
          isa_(checked_isa(isa)) {
        // Blocks of a product run in parallel, each on one thread. Process-wide in OpenBLAS; its
        // own threads would also change the bits.
        openblas_set_num_threads(1);
    }

    std::optional<oneapi::tbb::global_control> more_threads_;
    oneapi::tbb::task_arena arena_;
    std::size_t threads_;
    cpu_optim::Isa isa_;
};

ComputePool::ComputePool(std::size_t threads, cpu_optim::Isa isa)
    : impl_(std::make_unique<Impl>(threads, isa)) {}

ComputePool::~ComputePool() = default;

std::size_t ComputePool::threads() const noexcept {
    return impl_->threads_;
}

cpu_optim::Isa ComputePool::isa() const noexcept {
    return impl_->isa_;
}

void ComputePool::for_each(std::size_t count, const std::function<void(std::size_t)>& body) {
    if (impl_->threads_ == 1 || count == 1) {
        for (std::size_t i = 0; i < count; ++i)
            body(i);
        return;
    }
    // The two atomics repeat the order that TBB keeps anyway where a race detector can see it: its
    // library is not instrumented.
    std::atomic<bool> started{false};
    std::atomic<std::size_t> finished{0};
    started.store(true, std::memory_order_release);
    impl_->arena_.execute([&] {
        oneapi::tbb::parallel_for(
            oneapi::tbb::blocked_range<std::size_t>(0, count, 1),
            [&](const oneapi::tbb::blocked_range<std::size_t>& range) {
                (void)started.load(std::memory_order_acquire);
                for (std::size_t i = range.begin(); i != range.end(); ++i)
                    body(i);
                finished.fetch_add(1, std::memory_order_release);
            },
            oneapi::tbb::simple_partitioner());
    });
    (void)finished.load(std::memory_order_acquire);
}

}  // namespace spillway::engine
