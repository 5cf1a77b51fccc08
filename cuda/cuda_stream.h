// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cuda/cuda_event.h"
#include "cuda/cuda_memory.h"
#include "cuda/device.h"
#include "cuda/kernel_stream.h"
#include "cuda/row_copy.h"

namespace spillway::cuda {

/// A stream of a CUDA device. launch() runs its function on the host, in the stream's order; what
/// the device computes goes through kernels().
class CudaStream final : public Stream, private KernelStream {
  public:
    CudaStream(std::string_view name, std::shared_ptr<CudaCore> core,
               std::shared_ptr<CudaMemory> memory);
    ~CudaStream() override;
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;

    void copy_to_device(std::byte* device_to, const std::byte* host_from,
                        std::size_t bytes) override;
    void copy_to_host(std::byte* host_to, const std::byte* device_from, std::size_t bytes) override;
    void copy_rows_to_device(std::byte* device_to, std::size_t to_pitch, const std::byte* host_from,
                             std::size_t from_pitch, std::size_t row_bytes,
                             std::size_t rows) override;
    void copy_from_peer(std::byte* device_to, const Device& peer, const std::byte* peer_from,
                        std::size_t bytes) override;
    void launch(const char* name, std::function<void()> kernel) override;
    Event record() override;
    void wait(const Event& event) override;
    void synchronize() override;
    KernelStream* kernels() noexcept override { return this; }

  private:
    enum class Work { to_device, to_host, kernels };
    /// Work between two events that take the time.
    struct Timed {
        Work work;
        driver::EventHandle begin, end;
    };
    struct HostCall;

    void launch_kernel(const char* kernel, const LaunchShape& shape, void* parameters,
                       std::span<const MemoryUse> uses) override;
    void call_library(const char* name, std::span<const MemoryUse> uses,
                      const std::function<void(driver::StreamHandle)>& call) override;
    void check_uses(const char* kernel, std::span<const MemoryUse> uses) const;
    /// Makes `call` with the driver's stream, as a part of a run of kernels, unless work before it
    /// is known to have failed.
    template <typename Call>
    void add_to_kernel_run(const Call& call);

    void copy(std::string_view call, CopyDirection direction, const RowCopy& copy);
    void check_pairing(std::string_view call, CopyDirection direction, const RowCopy& copy) const;
    /// Rows that may be one copy: none of their host memory crosses the edge of a page-locked
    /// piece.
    void copy_together(CopyDirection direction, const RowCopy& copy);
    void copy_row(CopyDirection direction, const RowCopy& row);
    void copy_pieces(CopyDirection direction, const RowCopy& copy);
    [[nodiscard]] std::string purpose(std::string_view call) const;
    void refuse_from_inside() const;

    [[nodiscard]] std::shared_ptr<CudaEventState> record_state();
    [[nodiscard]] driver::EventHandle timestamp();
    /// Kernels in a row are timed as one: this ends such a run.
    void end_kernel_run();
    void count_finished();
    static void run_host_call(void* call);

    const std::string name_;
    const std::shared_ptr<CudaCore> core_;
    const std::shared_ptr<CudaMemory> memory_;
    const std::shared_ptr<CudaStreamLog> log_ = std::make_shared<CudaStreamLog>();
    driver::StreamHandle stream_ = nullptr;

    std::mutex mutex_;  ///< held while work is queued; guards what follows
    std::list<HostCall> host_calls_;
    std::deque<Timed> timed_;
    std::optional<driver::EventHandle> kernel_run_;  ///< where the run of kernels began
};

}  // namespace spillway::cuda
