// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/scratch_weights.h"

#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "offload/detail/drives/drive_files.h"
#include "offload/detail/placement/memory_ledger.h"
#include "offload/detail/state/bootstrap.h"
#include "offload/detail/state/scratch_file.h"
#include "offload/detail/weights/unit_slots.h"
#include "offload/detail/weights/weight_streamer.h"
#include "offload/disk_room.h"
#include "offload/plan.h"

namespace spillway::offload {
namespace {

/// Of one part: brought to the device as a layer is.
constexpr std::uint64_t unit_elements = std::uint64_t{1} << 20;
constexpr PlaneSet planes{Plane::weight, Plane::residue};

ElementOrder order_of(std::uint64_t elements) {
    std::vector<TensorSpec> tensors;
    for (std::uint64_t first = 0; first < elements; first += unit_elements)
        tensors.push_back({fmt::format("{}", tensors.size()), {unit_elements}});
    return ElementOrder(std::move(tensors));
}

std::vector<Unit> units_of(const ElementOrder& order) {
    std::vector<Unit> units;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor)
        units.push_back({tensor, 1});
    return units;
}

std::vector<std::size_t> all_of(const std::vector<Unit>& units) {
    std::vector<std::size_t> uses(units.size());
    std::iota(uses.begin(), uses.end(), std::size_t{0});
    return uses;
}

PlanRequest request_of(const ScratchWeightsOptions& options, cuda::MemoryKind device,
                       const std::vector<Unit>& units) {
    return {.device_kind = device,
            .device_bytes = ScratchWeights::needed_device_bytes(),
            .nvme = NvmeTier::present,
            .drives = options.nvme.size(),
            .planes = planes,
            .chunk_bytes = options.chunk_bytes,
            .windows = options.windows,
            .timing = UpdateTiming::as_completed,
            .durability = Durability::off,
            .training_uses = all_of(units),
            .gradient_uses = {}};
}

/// With as little host memory as will do, so that nothing of them rests there.
OffloadPlan plan_of(const ScratchWeightsOptions& options, cuda::MemoryKind device,
                    const ElementOrder& order) {
    const auto units = units_of(order);
    auto request = request_of(options, device, units);
    try {
        return make_plan(order, units, request);
    } catch (const PlanRefused& refused) {
        request.host_bytes = refused.needed_bytes;
    }
    auto plan = make_plan(order, units, request);
    if (plan.weight_read_buffers == 0)
        throw std::invalid_argument(
            fmt::format("{} weights take less memory than passing through it: take more, or "
                        "smaller chunks",
                        options.elements));
    return plan;
}

}  // namespace

class ScratchWeights::Impl {
  public:
    Impl(const ScratchWeightsOptions& options, cuda::Device& device, cuda::Stream& compute)
        : compute_(compute),
          order_(order_of(options.elements)),
          units_(units_of(order_)),
          plan_(plan_of(options, device.memory_kind(), order_)),
          ledger_(plan_.host_bytes),
          planes_(plan_, order_.tiles(), ledger_),
          queues_(options.nvme.size(), options.io),
          store_(open_store(options)),
          board_(monitor_, plan_.chunks) {
        fill(options);
        streamer_.emplace(
            detail::WeightStreamer::Context{monitor_, board_, store_, planes_, plan_, device,
                                            compute_, stalls_, update_time_, options.isa},
            detail::tiles_of_units(order_, units_), ledger_);
    }

    ~Impl() {
        monitor_.poison(std::make_exception_ptr(std::runtime_error("the weights were closed")));
    }

    void pass() {
        // As after an update: what is on the device is out of date.
        board_.reset(++version_);
        streamer_->begin_pass(all_of(units_), version_, WeightKind::newest);
        for (std::size_t unit = 0; unit < units_.size(); ++unit) {
            static_cast<void>(streamer_->acquire(unit));
            streamer_->release(unit);
        }
        compute_.synchronize();
    }

    [[nodiscard]] std::uint64_t nvme_read_bytes() const { return queues_.sum().read_bytes; }
    [[nodiscard]] std::size_t host_bytes() const noexcept { return ledger_.total_bytes(); }

  private:
    [[nodiscard]] detail::TileStore open_store(const ScratchWeightsOptions& options) {
        require_disk_room(options.nvme, plan_.disk_bytes);
        std::vector<nvme::DirectFile> files;
        for (const auto& folder : options.nvme)
            files.push_back(detail::make_scratch_file(folder));
        auto drives = detail::open_drives(
            queues_, std::move(files),
            detail::ExtentMap(order_.tiles(), Durability::off, planes,
                              detail::region_tiles_for(order_.tiles(), options.nvme.size())));
        return {std::move(drives.files), std::move(drives.map), order_, Durability::off, planes};
    }

    void fill(const ScratchWeightsOptions& options) {
        detail::UpdateThreads threads(options.threads, options.isa);
        const nvme::HugePageArena work(detail::bootstrap_bytes(plan_));
        detail::fill_new_run(
            {store_, planes_, plan_, threads, work.bytes()},
            [](TensorId, std::uint64_t first, std::span<float> out) {
                // Values that a drive cannot compress, by hashes of their number (Knuth's).
                for (auto& value : out)
                    value = static_cast<float>(static_cast<std::uint32_t>(++first * 2654435761U));
            });
        board_.reset(version_);
    }

    cuda::Stream& compute_;
    ElementOrder order_;
    std::vector<Unit> units_;
    OffloadPlan plan_;
    detail::Monitor monitor_;
    detail::StallTotals stalls_;
    detail::StallTotals update_time_;
    detail::MemoryLedger ledger_;
    detail::HostPlanes planes_;
    detail::DriveQueues queues_;
    detail::TileStore store_;
    detail::ChunkBoard board_;
    std::optional<detail::WeightStreamer> streamer_;
    std::uint64_t version_ = 0;
};

std::size_t ScratchWeights::needed_host_bytes(const ScratchWeightsOptions& options,
                                              cuda::MemoryKind device) {
    const auto plan = plan_of(options, device, order_of(options.elements));
    return plan.host_bytes + (device == cuda::MemoryKind::host ? plan.device_bytes : 0);
}

std::size_t ScratchWeights::needed_device_bytes() noexcept {
    return 2 * unit_elements * sizeof(float);
}

ScratchWeights::ScratchWeights(const ScratchWeightsOptions& options, cuda::Device& device,
                               cuda::Stream& compute)
    : impl_(std::make_unique<Impl>(options, device, compute)) {}
ScratchWeights::~ScratchWeights() = default;

void ScratchWeights::pass() {
    impl_->pass();
}
std::uint64_t ScratchWeights::nvme_read_bytes() const {
    return impl_->nvme_read_bytes();
}
std::size_t ScratchWeights::host_bytes() const noexcept {
    return impl_->host_bytes();
}

}  // namespace spillway::offload
