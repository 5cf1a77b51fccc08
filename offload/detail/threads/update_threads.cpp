// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/threads/update_threads.h"

#include <algorithm>

#include <tbb/blocked_range.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

namespace spillway::offload::detail {

class UpdateThreads::Arena {
  public:
    /// Threads beyond the processors would gain nothing, and TBB prints that it does not make them.
    explicit Arena(std::size_t threads)
        : arena_(static_cast<int>(std::min<std::size_t>(
              threads, static_cast<std::size_t>(tbb::info::default_concurrency())))) {}

    void for_each(std::uint64_t count, const std::function<void(std::uint64_t)>& body) {
        // Isolated, so that a thread that waits here never picks up a stranger's task.
        arena_.execute([&] {
            tbb::this_task_arena::isolate([&] {
                tbb::parallel_for(
                    tbb::blocked_range<std::uint64_t>(0, count, 1),
                    [&](const tbb::blocked_range<std::uint64_t>& range) {
                        for (auto i = range.begin(); i != range.end(); ++i)
                            body(i);
                    },
                    tbb::simple_partitioner());
            });
        });
    }

  private:
    tbb::task_arena arena_;
};

UpdateThreads::UpdateThreads(std::size_t threads, cpu_optim::Isa isa)
    : arena_(std::make_unique<Arena>(threads)), isa_(isa) {}

UpdateThreads::~UpdateThreads() = default;

void UpdateThreads::for_each(std::uint64_t count, const std::function<void(std::uint64_t)>& body) {
    arena_->for_each(count, body);
}

}  // namespace spillway::offload::detail
