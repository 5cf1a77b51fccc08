// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <random>

#include <catch2/catch.hpp>

#include "cpu_optim/isa.h"
#include "offload/tensor_optimizer.h"
#include "tests/offload/tensor_script.h"
#include "tests/support/recording_backend.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

struct Placement {
    const char* name;
    std::size_t host_bytes;
    std::size_t chunk_bytes;
};

constexpr std::array<Placement, 3> placements{{
    {"all on the drive", std::size_t{7} << 20, std::size_t{64} << 10},
    {"half on the drive", std::size_t{9} << 20, std::size_t{128} << 10},
    {"all in memory", std::size_t{64} << 20, 0},
}};

TensorOptimizerOptions options_for(const Placement& placement, const TemporaryFolder& folder) {
    TensorOptimizerOptions options;
    options.host_bytes = placement.host_bytes;
    options.chunk_bytes = placement.chunk_bytes;
    options.isa = cpu_optim::supported_isas().back();
    options.nvme = folder.path() / "drive";
    options.out = folder.path() / "out";
    std::filesystem::create_directory(options.nvme);
    return options;
}

/// Where the power goes: at an operation, or around a flush, counted from 0.
struct Cut {
    enum class At { operation, before_flush, after_flush };
    At at = At::operation;
    std::size_t number = std::numeric_limits<std::size_t>::max();  ///< never
};

/// What follows the cut fails. The disk's operations are asked for one by one.
class PowerSwitch {
  public:
    explicit PowerSwitch(const Cut& cut) : cut_(cut) {}

    int operator()(const RecordedOperation& operation) {
        if (!is_off_)
            is_off_ = goes_off(operation);
        return is_off_ ? EIO : 0;
    }

  private:
    bool goes_off(const RecordedOperation& operation) {
        const bool is_flush = operation.operation == nvme::IoOperation::flush;
        if (cut_.at == Cut::At::operation)
            return operation.index >= cut_.number;
        if (cut_.at == Cut::At::before_flush && is_flush && flushes_ == cut_.number)
            return true;
        if (cut_.at == Cut::At::after_flush && flushes_ > cut_.number)
            return true;
        flushes_ += is_flush ? 1 : 0;
        return false;
    }

    Cut cut_;
    std::size_t flushes_ = 0;
    bool is_off_ = false;
};

/// Operations of a disk before the first that failed.
std::size_t crash_point_of(const RecordedDisk& disk) {
    const auto log = disk.log();
    for (const auto& operation : log) {
        if (operation.error != 0)
            return operation.index;
    }
    return log.size();
}

class PowerCuts {
  public:
    /// One life of the run in a folder, ended by `cut` or by its own end; what unflushed writes
    /// become is decided by `fate`. Returns the newest commit that it knew to be durable.
    std::optional<std::uint64_t> live(const TensorOptimizerOptions& honest, const Cut& cut,
                                      const FateChooser& fate) {
        const Watchdog watchdog(std::chrono::seconds(60));
        disk_ = std::make_shared<RecordedDisk>();
        disk_->set_faults(PowerSwitch(cut));
        auto options = honest;
        options.io.backend_factory = [&](std::size_t depth) {
            return std::make_unique<RecordingBackend>(disk_, depth, 7);
        };
        std::optional<std::uint64_t> durable;
        try {
            auto model = script_.start();
            TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
            const auto note = optimizer.recover();
            const auto outcome = script_.run(optimizer, model, note ? note->iteration + 1 : 0);
            durable = outcome.durable;
        } catch (const std::exception&) {  // the power went while it was made or recovered
        }
        disk_->materialise(crash_point_of(*disk_), fate);
        return durable;
    }

    /// On honest files: what is recovered is a commit, no older than `durable`; it goes on to the
    /// bits of the uninterrupted run.
    void check_recovery(const TensorOptimizerOptions& options,
                        const std::optional<std::uint64_t>& durable) {
        const Watchdog watchdog(std::chrono::seconds(60));
        auto model = script_.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        const auto note = optimizer.recover();
        if (durable)
            REQUIRE(note.has_value());
        if (note) {
            const auto iteration = note->iteration;
            CAPTURE(iteration);
            REQUIRE(TensorScript::commits_after(iteration));
            CHECK(iteration >= durable.value_or(0));
            CHECK((note->client_state == TensorScript::commit_after(iteration).client_state));
        }
        const auto found = note ? note->iteration : 0;
        const bool same = snapshot(optimizer, model) == expected_[found];
        CHECK(same);
        const auto outcome = script_.run(optimizer, model, note ? found + 1 : 0);
        CHECK(outcome.error.empty());
        const bool same_end = snapshot(optimizer, model) == expected_.back();
        CHECK(same_end);
    }

    /// Flushes and operations of the newest life.
    [[nodiscard]] std::size_t operations() const { return disk_->operations(); }
    [[nodiscard]] std::size_t flushes() const {
        const auto log = disk_->log();
        return static_cast<std::size_t>(std::ranges::count_if(log, [](const auto& operation) {
            return operation.operation == nvme::IoOperation::flush;
        }));
    }

  private:
    TensorScript script_;
    std::vector<ClientSnapshot> expected_ = script_.uninterrupted();
    std::shared_ptr<RecordedDisk> disk_;
};

/// Around every flush of a run and at random points of it.
std::vector<Cut> cuts_of(const PowerCuts& whole_run, std::uint64_t seed) {
    std::vector<Cut> cuts;
    for (std::size_t flush = 0; flush < whole_run.flushes(); ++flush) {
        cuts.push_back({Cut::At::before_flush, flush});
        cuts.push_back({Cut::At::after_flush, flush});
    }
    std::mt19937_64 random(seed);
    for (int i = 0; i < 6; ++i)
        cuts.push_back({Cut::At::operation, random() % whole_run.operations()});
    return cuts;
}

}  // namespace

TEST_CASE("a power cut leaves a client's run at a commit, from which it goes on to the same bits",
          "[tensor_optimizer]") {
    PowerCuts runs;
    for (std::size_t number = 0; number < placements.size(); ++number) {
        const auto& placement = placements[number];
        {
            const TemporaryFolder folder;
            CHECK(runs.live(options_for(placement, folder), {}, drop_unflushed()) == 4);
        }
        const auto cuts = cuts_of(runs, 31 + number);
        REQUIRE(cuts.size() > 30);
        for (std::size_t index = 0; index < cuts.size(); ++index) {
            CAPTURE(placement.name, static_cast<int>(cuts[index].at), cuts[index].number);
            const TemporaryFolder folder;
            auto options = options_for(placement, folder);
            const auto fate = index % 3 == 0 ? drop_unflushed() : seeded_fates(index);
            const auto durable = runs.live(options, cuts[index], fate);
            // Another placement goes on.
            const auto& next = placements[(number + index) % placements.size()];
            options.host_bytes = next.host_bytes;
            options.chunk_bytes = next.chunk_bytes;
            runs.check_recovery(options, durable);
        }
    }
}

TEST_CASE("power cuts one after the other leave the newest durable commit", "[tensor_optimizer]") {
    PowerCuts runs;
    std::mt19937_64 random(5);
    for (std::uint64_t round = 0; round < 6; ++round) {
        const auto& placement = placements[round % placements.size()];
        const TemporaryFolder folder;
        const auto options = options_for(placement, folder);
        std::optional<std::uint64_t> durable;
        for (int life = 0; life < 4; ++life) {
            CAPTURE(placement.name, round, life);
            const Cut cut{Cut::At::operation, 20 + random() % 300};
            const auto known = runs.live(options, cut, seeded_fates(round * 10 + 1));
            durable = std::max(durable, known);
        }
        runs.check_recovery(options, durable);
    }
}
