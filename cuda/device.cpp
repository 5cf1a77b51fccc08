// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/device.h"

#include <cstring>

#include <fmt/format.h>

#include "cuda/cpu_device.h"
#include "cuda/cuda_device.h"
#include "cuda/device_spec.h"
#include "cuda/sim_device.h"

namespace spillway::cuda {
namespace {

std::string out_of_memory_message(std::string_view device, std::size_t asked_bytes,
                                  std::size_t free_bytes, std::size_t longest_run_bytes) {
    auto text = fmt::format("device {}: no room for {} bytes, {} are free", device, asked_bytes,
                            free_bytes);
    if (longest_run_bytes < free_bytes)
        text += fmt::format(", the longest run of them {}", longest_run_bytes);
    return text + "; free other buffers or take a device with more memory";
}

}  // namespace

OutOfDeviceMemory::OutOfDeviceMemory(std::string_view device, std::size_t asked, std::size_t free)
    : OutOfDeviceMemory(device, asked, free, free) {}

OutOfDeviceMemory::OutOfDeviceMemory(std::string_view device, std::size_t asked, std::size_t free,
                                     std::size_t longest_run_bytes)
    : std::runtime_error(out_of_memory_message(device, asked, free, longest_run_bytes)),
      asked_bytes(asked),
      free_bytes(free) {}

DeviceBuffer::DeviceBuffer(Device& device, std::byte* data, std::size_t size_bytes) noexcept
    : device_(&device), device_alive_(device.alive_), data_(data), size_bytes_(size_bytes) {}

DeviceBuffer::~DeviceBuffer() {
    release();
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      device_alive_(std::move(other.device_alive_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
        release();
        device_ = std::exchange(other.device_, nullptr);
        device_alive_ = std::move(other.device_alive_);
        data_ = std::exchange(other.data_, nullptr);
        size_bytes_ = std::exchange(other.size_bytes_, 0);
    }
    return *this;
}

void DeviceBuffer::release() noexcept {
    if (data_ != nullptr && !device_alive_.expired())
        device_->deallocate(data_, size_bytes_);
}

void Stream::copy_from_peer(std::byte* device_to, const Device&, const std::byte* peer_from,
                            std::size_t bytes) {
    // The host reaches the memory of both.
    launch("copy from peer",
           [device_to, peer_from, bytes] { std::memcpy(device_to, peer_from, bytes); });
}

Device::PeerPath Device::reach(const Device&) {
    return PeerPath::direct;
}

std::unique_ptr<HostRegistration> Device::register_host(std::byte*, std::size_t) {
    return std::make_unique<HostRegistration>();
}

std::unique_ptr<Device> make_device(std::string_view spec, std::size_t capacity_bytes) {
    const DeviceSpec parsed = parse_device_spec(spec);
    if (parsed.kind == DeviceSpec::Kind::cpu)
        return make_cpu_device(capacity_bytes);
    if (parsed.kind == DeviceSpec::Kind::cuda) {
        CudaOptions options;
        options.ordinal = parsed.ordinal;
        options.capacity_bytes = capacity_bytes;
        return make_cuda_device(options);
    }
    SimOptions options;
    options.capacity_bytes = parsed.capacity_bytes;
    options.link_bytes_per_s = parsed.link_bytes_per_s;
    options.name = spec;
    return make_sim_device(options);
}

}  // namespace spillway::cuda
