// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "offload/activations.h"
#include "offload/element_order.h"
#include "offload/factor_layout.h"
#include "offload/plane.h"
#include "offload/windows.h"

namespace spillway::offload {

enum class Durability { on, off };  ///< off: one copy on the drive; a crash loses the run

/// When a chunk may be updated.
enum class UpdateTiming {
    after_norm,    ///< gradients wait until norm and finiteness of all are known (clipping, skip
                   ///< rule)
    as_completed,  ///< each chunk as soon as its gradient is complete
};

enum class NvmeTier { present, absent };

/// What a plan is made from. All bytes are what this layer may take, on top of what its client
/// takes.
struct PlanRequest {
    cuda::MemoryKind device_kind = cuda::MemoryKind::host;
    std::size_t host_bytes =
        0;  ///< with a host device: for planes, staging, and the device's unit slots together
    std::size_t device_bytes =
        0;  ///< for unit slots on the device; with a host device a cap below host_bytes
    NvmeTier nvme = NvmeTier::absent;
    std::size_t drives = 1;             ///< of the NVMe tier
    PlaneSet planes = training_planes;  ///< that are kept: weights, residues and state
    std::size_t chunk_bytes =
        0;  ///< of an fp32 plane of a chunk; a multiple of 64 KiB; 0: chosen here
    Windows windows = {};
    std::size_t passes = 1;  ///< of an update over all planes and gradients: 1, or 2 or 3
                             ///< (cpu_optim::OptimizerNeeds), which need after_norm
    SecondMoments second_moments = SecondMoments::planes;
    UpdateTiming timing = UpdateTiming::after_norm;
    Durability durability = Durability::on;
    std::vector<std::size_t> training_uses;  ///< units whose weights one step acquires, in order
    std::vector<std::size_t> gradient_uses;  ///< units whose gradient one step releases, in order
    ActivationLayout activations = {};  ///< of each device: what of it leaves the device is kept
    std::size_t activation_stores = 1;  ///< devices
};

/// One line of a budget.
struct MemoryItem {
    std::string name;
    std::size_t bytes = 0;
};

/// The request cannot be met: names the tier, the bytes needed at least and the bytes available.
class PlanRefused : public std::runtime_error {
  public:
    PlanRefused(std::string_view tier, std::size_t needed_bytes, std::size_t available_bytes,
                std::string_view advice);
    std::size_t needed_bytes;
    std::size_t available_bytes;
};

/// Units of similar size share slots on the device.
struct UnitSlotClass {
    std::size_t slot_bytes = 0;
    std::size_t slots = 0;
    std::vector<std::size_t> units;
};

/// Who lives where, fixed for the run. Placement only: it changes no bit of the result.
struct OffloadPlan {
    PlaneSet planes = training_planes;  ///< that an update reads and writes
    std::uint64_t chunk_tiles = 0;
    std::uint64_t chunks = 0;
    /// resident[plane][chunk]: the plane of that chunk lives in host memory, else on the drive.
    PerPlane<std::vector<std::uint8_t>> resident;
    std::vector<std::uint8_t>
        gradient_resident;           ///< per chunk: its gradient waits in host memory, else spilled
    std::size_t pipeline_slots = 0;  ///< chunks that pass between drive and update at a time
    std::size_t passes = 1;          ///< as in the request
    SecondMoments second_moments = SecondMoments::planes;  ///< as in the request
    std::size_t kept_slots = 0;  ///< of pipeline_slots, for chunks kept between passes
    std::vector<std::uint8_t>
        kept;  ///< per chunk: it is kept so, else read in each pass; with several passes
    std::size_t gradient_slots =
        0;  ///< host buffers in which spilled or passing gradients are put together
    std::size_t weight_read_buffers = 0;  ///< chunk-sized staging buffers of the weight prefetch
    std::vector<UnitSlotClass> weight_slots;  ///< on the device
    std::size_t unit_gradient_slots = 0;      ///< on the device, each as large as the largest unit
    std::size_t unit_gradient_bytes = 0;

    std::vector<MemoryItem> host_items;    ///< what is allocated in host memory
    std::vector<MemoryItem> device_items;  ///< what is allocated on the device
    std::size_t host_bytes = 0;            ///< sum of host_items
    std::size_t device_bytes = 0;          ///< sum of device_items
    std::uint64_t disk_bytes = 0;  ///< extents, both copies, spilled gradients and layers' inputs

    std::vector<std::size_t> gradient_uses;  ///< as in the request
    std::uint64_t nvme_read_bytes_per_step = 0;
    std::uint64_t nvme_written_bytes_per_step = 0;
    /// Of these, read for forward and backward; and of each, gradients that wait on the drive,
    /// once. The rest is the update's.
    std::uint64_t nvme_weight_read_bytes_per_step = 0;
    std::uint64_t nvme_gradient_bytes_per_step = 0;
    std::uint64_t nvme_activation_bytes_per_step = 0;  ///< of each too, likewise
    /// By a commit beside the steps' own traffic: planes in host memory, the table, the record.
    /// Of make_plan().
    std::uint64_t commit_bytes = 0;
    std::uint64_t to_device_bytes_per_step = 0;
    std::uint64_t to_host_bytes_per_step = 0;

    ActivationLayout activations;       ///< as in the request
    std::size_t activation_stores = 1;  ///< as in the request

    /// Planes that an update of `chunk` needs: all of `planes` unless it says otherwise.
    std::vector<PlaneSet> chunk_planes;
    [[nodiscard]] PlaneSet planes_of(std::uint64_t chunk) const noexcept {
        return chunk_planes.empty() ? planes : chunk_planes[chunk];
    }

    /// How often an update reads what of `chunk` is on the drive.
    [[nodiscard]] std::size_t reads_of(std::uint64_t chunk) const noexcept {
        return passes == 1 || kept[chunk] != 0 ? 1 : passes;
    }

    [[nodiscard]] TileRange chunk_range(std::uint64_t chunk, std::uint64_t tiles) const noexcept {
        const auto begin = chunk * chunk_tiles;
        return {begin, begin + chunk_tiles < tiles ? begin + chunk_tiles : tiles};
    }
};

/// The largest chunk that is chosen for a budget of so much host memory: large enough for a drive's
/// full rate, small enough for what passes through windows of the usual width to take a small part
/// of it.
[[nodiscard]] std::uint64_t usual_chunk_tiles(std::size_t host_bytes, std::size_t drives) noexcept;

/// Throws PlanRefused, or std::invalid_argument on a chunk size that is no multiple of 64 KiB, on
/// windows that check_windows() refuses, on more than three passes, and on several with another
/// timing than after_norm: whole tensors have to wait.
[[nodiscard]] OffloadPlan make_plan(const ElementOrder& order, std::span<const Unit> units,
                                    const PlanRequest& request);

}  // namespace spillway::offload
