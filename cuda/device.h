// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

/// cuda/: a device with memory of its own, in-order asynchronous streams, events and copies. What
/// is above talks to this interface only, so that a simulated accelerator stands in for a real one.
namespace spillway::cuda {

/// Where a device's memory lies.
enum class MemoryKind {
    host,    ///< the device computes in host memory; kernels may read host pointers, copies are not
             ///< needed
    device,  ///< a memory of its own: only copies cross, kernels see device pointers alone
};

/// The device has no room. Carries the bytes asked for and the bytes free.
class OutOfDeviceMemory : public std::runtime_error {
  public:
    OutOfDeviceMemory(std::string_view device, std::size_t asked_bytes, std::size_t free_bytes);
    /// `longest_run_bytes`: the longest free run, which may be less than `free_bytes` in all.
    OutOfDeviceMemory(std::string_view device, std::size_t asked_bytes, std::size_t free_bytes,
                      std::size_t longest_run_bytes);
    std::size_t asked_bytes;
    std::size_t free_bytes;
};

class Device;
class KernelStream;

/// Owns a run of device memory, aligned to 4096 bytes. Move-only; moved-from is empty. Freed memory
/// must not be in use by a stream: synchronise first. A buffer left over when its device is
/// destroyed holds nothing any more; destroying it is then harmless.
class DeviceBuffer {
  public:
    DeviceBuffer() noexcept = default;
    DeviceBuffer(Device& device, std::byte* data, std::size_t size_bytes) noexcept;
    ~DeviceBuffer();
    DeviceBuffer(DeviceBuffer&& other) noexcept;
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;

    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }
    template <typename T>
    [[nodiscard]] T* as() const noexcept {
        return reinterpret_cast<T*>(data_);
    }

  private:
    void release() noexcept;

    Device* device_ = nullptr;
    std::weak_ptr<const void> device_alive_;
    std::byte* data_ = nullptr;
    std::size_t size_bytes_ = 0;
};

/// A point in a stream's order. Copyable handle; a default-constructed event has always happened.
class Event {
  public:
    class State {
      public:
        virtual ~State() = default;
        [[nodiscard]] virtual bool done() const = 0;
        virtual void wait() = 0;
    };
    Event() noexcept = default;
    explicit Event(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

    [[nodiscard]] bool done() const { return !state_ || state_->done(); }
    /// Blocks the host until the event has happened. Throws what an operation before it threw.
    void wait() const {
        if (state_)
            state_->wait();
    }
    [[nodiscard]] const std::shared_ptr<State>& state() const noexcept { return state_; }

  private:
    std::shared_ptr<State> state_;
};

/// One in-order queue of work. Calls enqueue and return; they may be made from any thread. Memory
/// named in a call must stay valid until the call has executed. An exception thrown by a kernel is
/// kept and rethrown by synchronize() and by Event::wait() of later events; work queued behind it
/// is dropped, and so is the work of a stream that waits for such an event: a failed stream stays
/// failed. Events happen all the same. A wrong copy (see each) throws std::invalid_argument at once
/// and queues nothing. A kernel must not call the stream it runs on (std::logic_error). Destroying
/// a stream drains it.
class Stream {
  public:
    virtual ~Stream() = default;

    virtual void copy_to_device(std::byte* device_to, const std::byte* host_from,
                                std::size_t bytes) = 0;
    virtual void copy_to_host(std::byte* host_to, const std::byte* device_from,
                              std::size_t bytes) = 0;
    /// `rows` runs of `row_bytes`, `to_pitch` and `from_pitch` bytes apart, as one operation. The
    /// runs must not overlap: each pitch is at least `row_bytes`.
    virtual void copy_rows_to_device(std::byte* device_to, std::size_t to_pitch,
                                     const std::byte* host_from, std::size_t from_pitch,
                                     std::size_t row_bytes, std::size_t rows) = 0;
    /// From the memory of `peer`, a device of the same kind, perhaps this stream's own. No link to
    /// the host is counted.
    virtual void copy_from_peer(std::byte* device_to, const Device& peer,
                                const std::byte* peer_from, std::size_t bytes);
    /// Runs `kernel` in the stream's order. `name` labels traces; it must be a literal.
    virtual void launch(const char* name, std::function<void()> kernel) = 0;

    /// An event that happens when all work queued so far has executed.
    [[nodiscard]] virtual Event record() = 0;
    /// Work queued from here on starts only after `event`; the host does not wait.
    virtual void wait(const Event& event) = 0;
    /// Blocks the host until all work queued so far has executed.
    virtual void synchronize() = 0;

    /// Where the device computes by kernels of its own (kernel_stream.h), the way to them; null
    /// where launch() is how it computes. A device with kernels runs what launch() is given on the
    /// host, in the stream's order, where it can touch host memory alone; once a failure is known
    /// no more is queued, but what had been queued before it is known still executes.
    [[nodiscard]] virtual KernelStream* kernels() noexcept { return nullptr; }
};

/// Host memory made ready for copies at the link's full rate, as long as this exists. No copy may
/// be in flight when it is destroyed.
class HostRegistration {
  public:
    virtual ~HostRegistration() = default;
    [[nodiscard]] virtual std::size_t page_locked_bytes() const noexcept { return 0; }
};

/// Bytes and seconds since construction.
struct DeviceStatistics {
    std::uint64_t to_device_bytes = 0;
    std::uint64_t to_host_bytes = 0;
    double to_device_busy_s = 0;
    double to_host_busy_s = 0;
    double kernel_busy_s = 0;  ///< summed over streams
    std::size_t peak_bytes = 0;
};

/// An accelerator, or the host dressed as one. Thread-safe. Outlives its buffers and streams.
class Device {
  public:
    Device() = default;
    virtual ~Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    [[nodiscard]] virtual std::string name()
        const = 0;  ///< as on the command line: "cpu", "sim:64MiB@8GB/s"
    /// What it is, the same in every process: what is measured of a device is filed under it.
    [[nodiscard]] virtual std::string identity() const { return name(); }
    [[nodiscard]] virtual MemoryKind memory_kind() const noexcept = 0;
    [[nodiscard]] virtual std::size_t capacity_bytes() const noexcept = 0;
    [[nodiscard]] virtual std::size_t free_bytes() const noexcept = 0;
    /// Bytes per second each way; 0 where there is no link, or none whose rate is known.
    [[nodiscard]] virtual double link_bytes_per_s() const noexcept = 0;

    /// Throws OutOfDeviceMemory. Room is taken in whole pages of 4096 bytes; no bytes, an empty
    /// buffer. What the memory holds is undefined.
    [[nodiscard]] virtual DeviceBuffer allocate(std::size_t bytes) = 0;
    [[nodiscard]] virtual std::unique_ptr<Stream> create_stream(std::string_view name) = 0;
    [[nodiscard]] virtual DeviceStatistics statistics() const = 0;

    /// Page-locks host memory where the device gains by it, in pieces; `data` begins a page. Throws
    /// DriverError, with all pieces undone and the failed one named.
    [[nodiscard]] virtual std::unique_ptr<HostRegistration> register_host(std::byte* data,
                                                                          std::size_t bytes);

    /// How copy_from_peer() comes from that device's memory.
    enum class PeerPath { direct, through_host };
    /// Makes it direct where the machine can do so; once, before the first copy. Throws
    /// std::invalid_argument for a device of another kind.
    [[nodiscard]] virtual PeerPath reach(const Device& peer);

  private:
    friend class DeviceBuffer;
    virtual void deallocate(std::byte* data, std::size_t bytes) noexcept = 0;

    std::shared_ptr<const void> alive_ = std::make_shared<char>();
};

/// `spec`: "cpu", "cuda:N" or "sim:BYTES[@RATE]" ("sim:256MiB@8GB/s"; without a rate the link is as
/// fast as memory). `capacity_bytes` limits `cpu` and `cuda:N`; 0 leaves a `cuda:N` what is free on
/// it, less a margin. Throws std::invalid_argument that names the spec, what is wrong with it and
/// what is accepted, or why there is no such device.
[[nodiscard]] std::unique_ptr<Device> make_device(std::string_view spec,
                                                  std::size_t capacity_bytes);

}  // namespace spillway::cuda
