// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cuda_device.h"

#include <array>
#include <cctype>
#include <fstream>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "cuda/byte_count.h"
#include "cuda/cuda_core.h"
#include "cuda/cuda_memory.h"
#include "cuda/cuda_place.h"
#include "cuda/cuda_registration.h"
#include "cuda/cuda_stream.h"
#include "cuda/host_mapping.h"
#include "cuda/kernel_image.h"

namespace spillway::cuda {
namespace {

std::string library_of(const std::string& asked) {
    return asked.empty() ? std::string(Driver::default_library) : asked;
}

class CudaDevice final : public Device, private CudaPlace {
  public:
    CudaDevice(std::shared_ptr<CudaCore> core, std::string identity, std::size_t capacity_bytes,
               std::size_t registration_piece_bytes)
        : core_(std::move(core)),
          identity_(std::move(identity)),
          memory_(std::make_shared<CudaMemory>(core_, capacity_bytes)),
          registration_piece_bytes_(registration_piece_bytes) {}

    std::string name() const override { return core_->name(); }
    std::string identity() const override { return identity_; }
    MemoryKind memory_kind() const noexcept override { return MemoryKind::device; }
    std::size_t capacity_bytes() const noexcept override { return memory_->capacity_bytes(); }
    std::size_t free_bytes() const noexcept override { return memory_->free_bytes(); }
    double link_bytes_per_s() const noexcept override { return 0; }

    DeviceBuffer allocate(std::size_t bytes) override {
        if (bytes == 0)
            return {};
        return {*this, memory_->allocate(bytes), bytes};
    }

    std::unique_ptr<Stream> create_stream(std::string_view name) override {
        return std::make_unique<CudaStream>(name, core_, memory_);
    }

    DeviceStatistics statistics() const override {
        DeviceStatistics statistics = core_->counters.snapshot();
        statistics.peak_bytes = memory_->peak_bytes();
        return statistics;
    }

    std::unique_ptr<HostRegistration> register_host(std::byte* data, std::size_t bytes) override {
        return std::make_unique<CudaRegistration>(core_, data, bytes, registration_piece_bytes_);
    }

    PeerPath reach(const Device& peer) override;

  private:
    friend class spillway::cuda::CudaPlace;
    const CudaCore& core() const noexcept override { return *core_; }
    const CudaMemory& memory() const noexcept override { return *memory_; }
    void deallocate(std::byte* data, std::size_t) noexcept override { memory_->deallocate(data); }

    const std::shared_ptr<CudaCore> core_;
    const std::string identity_;
    const std::shared_ptr<CudaMemory> memory_;
    const std::size_t registration_piece_bytes_;
};

Device::PeerPath CudaDevice::reach(const Device& peer) {
    const auto& other = CudaPlace::of(peer, name()).core();
    if (other.id() == core_->id())
        return PeerPath::direct;
    const auto& driver = core_->driver();
    const auto purpose = "reaching the memory of " + other.name();
    int can = 0;
    core_->check(driver->peer_can_be_reached(&can, core_->id(), other.id()),
                 "cuDeviceCanAccessPeer", purpose);
    if (can == 0)
        return PeerPath::through_host;
    const auto scope = core_->current();
    const auto result = driver->peer_enable(other.context(), 0);
    // The context is the process's: another library may have been there.
    if (result != driver::peer_already_enabled)
        core_->check(result, "cuCtxEnablePeerAccess", purpose);
    return PeerPath::direct;
}

/// Of the oldest GPUs that the kernels are compiled for.
constexpr int least_capability_major = 8;

[[noreturn]] void refuse(int ordinal, std::string_view why) {
    throw std::invalid_argument(fmt::format("device 'cuda:{}': {}", ordinal, why));
}

std::string no_such_device(std::size_t devices) {
    return fmt::format("the CUDA driver has {} devices, numbered from 0", devices);
}

/// What the device may use. Throws where more is asked for than is free.
std::size_t capacity_of(const CudaOptions& options, const CudaCore& core) {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    const auto scope = core.current();
    core.check(core.driver()->memory_info(&free_bytes, &total_bytes), "cuMemGetInfo",
               "device memory");
    if (options.capacity_bytes == 0)
        return free_bytes > cuda_margin_bytes ? free_bytes - cuda_margin_bytes : 0;
    if (options.capacity_bytes > free_bytes)
        refuse(options.ordinal,
               fmt::format("{} of its memory were asked for, but only {} of {} are free; ask for "
                           "less with --device-mem, or end what else uses it",
                           format_byte_count(options.capacity_bytes), format_byte_count(free_bytes),
                           format_byte_count(total_bytes)));
    return options.capacity_bytes;
}

int version_of(const Driver& driver) {
    int version = 0;
    driver.check(driver->driver_version(&version), "cuDriverGetVersion", "the version");
    return version;
}

/// Why a driver cannot take the kernels that this build has; empty where it can.
std::string version_refusal(int driver_version) {
    const int needed = kernel_image_cuda_major();
    if (driver_version / 1000 >= needed)
        return "";
    return fmt::format(
        "the driver is of CUDA {}.{}, but this build's kernels were compiled for CUDA {}: install "
        "an NVIDIA driver of CUDA {} or later, or build with an nvcc no newer than the driver",
        driver_version / 1000, driver_version % 1000 / 10, needed, needed);
}

int device_count(const Driver& driver) {
    int count = 0;
    driver.check(driver->device_count(&count), "cuDeviceGetCount", "looking for devices");
    return count;
}

/// Which processors' memory is near, as Linux says; the driver's address has capitals.
int numa_node_of(std::string pci_address) {
    for (char& c : pci_address)
        c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::ifstream file(fmt::format("/sys/bus/pci/devices/{}/numa_node", pci_address));
    int node = -1;
    return file >> node ? node : -1;
}

CudaDeviceReport inspect_device(const Driver& driver, int ordinal) {
    const auto purpose = fmt::format("device cuda:{}", ordinal);
    driver::DeviceId id = 0;
    driver.check(driver->device_get(&id, ordinal), "cuDeviceGet", purpose);
    CudaDeviceReport report;
    std::array<char, 256> text{};
    const auto length = static_cast<int>(text.size() - 1);
    driver.check(driver->device_name(text.data(), length, id), "cuDeviceGetName", purpose);
    report.name = text.data();
    std::size_t bytes = 0;
    driver.check(driver->device_memory(&bytes, id), "cuDeviceTotalMem", purpose);
    report.memory_bytes = bytes;
    driver.check(driver->device_attribute(&report.major, driver::attribute_major, id),
                 "cuDeviceGetAttribute", purpose);
    driver.check(driver->device_attribute(&report.minor, driver::attribute_minor, id),
                 "cuDeviceGetAttribute", purpose);
    if (report.major < least_capability_major)
        report.refusal = fmt::format(
            "{} has compute capability {}.{}; the kernels need {}.0 or later: name a GPU of Ampere "
            "or after, or use 'cpu'",
            report.name, report.major, report.minor, least_capability_major);
    if (driver->device_pci_address(text.data(), length, id) == driver::success) {
        report.pci_address = text.data();
        report.numa_node = numa_node_of(report.pci_address);
    }
    return report;
}

/// What the driver says of the device, which can be used.
CudaDeviceReport require_device(const Driver& driver, const CudaOptions& options) {
    if (const int count = device_count(driver); options.ordinal < 0 || options.ordinal >= count)
        refuse(options.ordinal, no_such_device(static_cast<std::size_t>(count)));
    if (options.kernels.empty())
        if (const auto why = version_refusal(version_of(driver)); !why.empty())
            refuse(options.ordinal, why);
    auto report = inspect_device(driver, options.ordinal);
    if (!report.refusal.empty())
        refuse(options.ordinal, report.refusal);
    return report;
}

}  // namespace

const CudaPlace& CudaPlace::of(const Device& device, std::string_view asker) {
    if (const auto* const place = dynamic_cast<const CudaDevice*>(&device))
        return *place;
    throw std::invalid_argument(
        fmt::format("{} cannot reach the memory of {}, which is no GPU", asker, device.name()));
}

std::unique_ptr<Device> make_cuda_device(const CudaOptions& options) {
    const auto piece = options.registration_piece_bytes;
    if (piece == 0 || piece % page_bytes != 0)
        throw std::invalid_argument(
            fmt::format("CUDA device: registration_piece_bytes is {}, but must be a multiple of {}",
                        piece, page_bytes));
    const auto kernels = options.kernels.empty() ? kernel_image() : options.kernels;
    if (kernels.empty())
        refuse(options.ordinal, kernel_image_description());
    try {
        auto driver = Driver::load(library_of(options.driver_library));
        // "cuda:0" is another GPU under another CUDA_VISIBLE_DEVICES.
        const auto report = require_device(*driver, options);
        auto identity = fmt::format("{} at {}", report.name, report.pci_address);
        auto core = std::make_shared<CudaCore>(std::move(driver), options.ordinal);
        core->load_kernels(kernels.data());
        const auto capacity_bytes = capacity_of(options, *core);
        return std::make_unique<CudaDevice>(std::move(core), std::move(identity), capacity_bytes,
                                            piece);
    } catch (const DriverUnavailable& error) {
        refuse(options.ordinal, error.what());
    } catch (const DriverError& error) {
        refuse(options.ordinal, error.what());
    }
}

CudaReport inspect_cuda(const std::string& driver_library) {
    CudaReport report;
    report.kernels = kernel_image_description();
    try {
        const auto driver = Driver::load(library_of(driver_library));
        report.driver_version = version_of(*driver);
        const int count = device_count(*driver);
        for (int ordinal = 0; ordinal < count; ++ordinal)
            report.devices.push_back(inspect_device(*driver, ordinal));
        if (count == 0)
            report.refusal = "the driver has no devices";
        else if (kernel_image().empty())
            report.refusal = report.kernels;
        else
            report.refusal = version_refusal(report.driver_version);
    } catch (const std::runtime_error& error) {
        report.refusal = error.what();
    }
    return report;
}

std::string cuda_refusal(const CudaReport& report, int ordinal) {
    if (!report.refusal.empty())
        return report.refusal;
    const bool there = ordinal >= 0 && static_cast<std::size_t>(ordinal) < report.devices.size();
    return there ? report.devices[static_cast<std::size_t>(ordinal)].refusal
                 : no_such_device(report.devices.size());
}

}  // namespace spillway::cuda
