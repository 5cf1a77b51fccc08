// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <variant>

#include "cuda/device.h"
#include "cuda/row_copy.h"
#include "cuda/sim_core.h"
#include "cuda/sim_event.h"

namespace spillway::cuda {

/// A stream with a thread of its own that executes the queued operations in order.
class SimStream final : public Stream {
  public:
    SimStream(std::string_view name, std::shared_ptr<SimCore> core);
    ~SimStream() override;
    SimStream(const SimStream&) = delete;
    SimStream& operator=(const SimStream&) = delete;

    void copy_to_device(std::byte* device_to, const std::byte* host_from,
                        std::size_t bytes) override;
    void copy_to_host(std::byte* host_to, const std::byte* device_from, std::size_t bytes) override;
    void copy_rows_to_device(std::byte* device_to, std::size_t to_pitch, const std::byte* host_from,
                             std::size_t from_pitch, std::size_t row_bytes,
                             std::size_t rows) override;
    void launch(const char* name, std::function<void()> kernel) override;
    Event record() override;
    void wait(const Event& event) override;
    void synchronize() override;

  private:
    using Clock = SimLink::Clock;
    struct Copy {
        CopyDirection direction;
        RowCopy rows;
    };
    struct Kernel {
        std::function<void()> run;
    };
    struct Record {
        std::shared_ptr<SimEventState> state;
    };
    struct Wait {
        Event event;
    };
    struct Operation {
        std::variant<Copy, Kernel, Record, Wait> what;
        Clock::time_point queued_at;
    };

    void copy(std::string_view call, CopyDirection direction, const RowCopy& copy);
    void check_pairing(std::string_view call, CopyDirection direction, const RowCopy& copy) const;
    void enqueue(decltype(Operation::what) what);

    void work();
    void execute(Operation& operation);
    void execute(Copy& copy);
    void execute(Kernel& kernel);
    void execute(Record& record);
    void execute(Wait& wait);
    void delay();

    const std::string name_;
    const std::shared_ptr<SimCore> core_;

    // The worker's alone.
    Clock::time_point ready_;     ///< when the last operation ended on the simulated clock
    std::exception_ptr failure_;  ///< the first one; the stream drops work from then on
    std::mt19937_64 random_;

    std::mutex mutex_;  ///< guards what follows
    std::condition_variable changed_;
    std::deque<Operation> queue_;
    bool closing_ = false;

    std::thread worker_;  ///< last: it uses all the others
};

}  // namespace spillway::cuda
