// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/state_verifier.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "nvme/huge_page_arena.h"
#include "offload/detail/drives/drive_lanes.h"
#include "offload/detail/threads/stall_clock.h"
#include "offload/errors.h"

namespace spillway::offload::detail {
namespace {

constexpr std::uint64_t tiles_at_once = 32;
constexpr std::size_t slots_a_drive = 4;
constexpr std::size_t slot_bytes = tiles_at_once * tile_bytes(Plane::m);

class StateVerifier {
  public:
    StateVerifier(TileStore& store, const nvme::CompletionSignal& io_ended)
        : store_(store),
          io_ended_(io_ended),
          arena_(slots_a_drive * std::max<std::size_t>(store.drives(), 1) * slot_bytes),
          slots_(arena_.size_bytes() / slot_bytes),
          lanes_(store.drives(), slots_.size()) {
        for (std::size_t index = 0; index < slots_.size(); ++index)
            slots_[index].data = arena_.bytes().data() + index * slot_bytes;
    }

    VerifyReport run() {
        list_runs();
        for (std::size_t left = runs_.size(); left > 0; --left) {
            start_reads();
            auto& slot = await_read();
            slot.read.wait();
            verify(slot);
            lanes_.give_back(slot.drive);
            slot.is_free = true;
        }
        for (auto& [run, damage] : damage_)
            std::ranges::move(damage, std::back_inserter(report_.damage));
        return std::move(report_);
    }

  private:
    struct Run {
        Plane plane = Plane::weight;
        TileRange tiles;
    };
    struct Slot {
        std::byte* data = nullptr;
        bool is_free = true;
        std::size_t run = 0;
        std::size_t drive = 0;
        PendingIo read;
    };

    void list_runs() {
        const auto tiles = store_.order().tiles();
        std::vector<std::size_t> drives;
        for (const auto plane : store_.planes()) {
            for (std::uint64_t tile = 0; tile < tiles; tile += tiles_at_once) {
                runs_.push_back({plane, {tile, std::min(tiles, tile + tiles_at_once)}});
                drives.push_back(store_.drive_of(plane, tile));
            }
        }
        lanes_.begin(drives);
    }

    void start_reads() {
        for (auto& slot : slots_) {
            if (!slot.is_free)
                continue;
            const auto turn = lanes_.take();
            if (!turn)
                return;
            const auto& [plane, tiles] = runs_[turn->item];
            slot.is_free = false;
            slot.run = turn->item;
            slot.drive = turn->drive;
            slot.read = store_.read(plane, tiles, slot.data);
        }
    }

    Slot& await_read() {
        for (;;) {
            const auto seen = io_ended_.now();
            const auto found = std::ranges::find_if(
                slots_, [](const Slot& slot) { return !slot.is_free && slot.read.done(); });
            if (found != slots_.end())
                return *found;
            io_ended_.wait_beyond(seen);
        }
    }

    void verify(const Slot& slot) {
        const auto& [plane, tiles] = runs_[slot.run];
        for (auto tile = tiles.begin; tile < tiles.end; ++tile) {
            try {
                store_.verify(
                    plane, tile,
                    {slot.data + (tile - tiles.begin) * tile_bytes(plane), tile_bytes(plane)});
            } catch (const IntegrityError& error) {
                damage_[slot.run].emplace_back(error.what());
            }
            ++report_.tiles_checked;
            report_.bytes_checked += tile_bytes(plane);
        }
    }

    TileStore& store_;
    const nvme::CompletionSignal& io_ended_;
    nvme::HugePageArena arena_;
    std::vector<Slot> slots_;
    DriveLanes lanes_;
    std::vector<Run> runs_;
    std::map<std::size_t, std::vector<std::string>> damage_;  ///< by run: told in their order
    VerifyReport report_;
};

}  // namespace

VerifyReport verify_store(TileStore& store, const nvme::CompletionSignal& io_ended) {
    const auto began_s = now_s();
    auto report = StateVerifier(store, io_ended).run();
    report.wall_s = now_s() - began_s;
    return report;
}

}  // namespace spillway::offload::detail
