// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/device_group.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include <catch2/catch.hpp>

#include "cuda/sim_device.h"
#include "tests/offload/synthetic_training.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

constexpr unsigned parts = 4;  ///< of a step, whose gradients are added up in order
constexpr std::uint64_t steps = 2;

/// One rank's way to weights and gradients, and which parts of a step are its own.
struct Worker {
    std::function<const float*(std::size_t)> acquire_weights;
    std::function<void(std::size_t)> release_weights;
    std::function<float*(std::size_t)> acquire_gradient;
    std::function<void(std::size_t)> release_gradient;
    cuda::Stream& compute;
    unsigned first = 0, end = parts;
};

class Passes {
  public:
    Passes() : model(synthetic_model()), order(model.tensors) {}

    void step(const Worker& worker, std::uint64_t iteration) const {
        const auto units = model.units.size();
        for (std::size_t unit = 0; unit < units; ++unit) {
            static_cast<void>(worker.acquire_weights(unit));
            worker.release_weights(unit);
        }
        contribute(worker, 0, iteration, 0);
        for (auto unit = units; unit-- > 0;)
            contribute(worker, unit, iteration, unit == 0 ? 1 : 0);
    }

    SyntheticModel model;
    ElementOrder order;

  private:
    void contribute(const Worker& worker, std::size_t unit, std::uint64_t iteration,
                    unsigned index) const {
        const auto* const weights = worker.acquire_weights(unit);
        auto* const gradient = worker.acquire_gradient(unit);
        worker.compute.launch("gradient", [=, this, first = worker.first, end = worker.end] {
            const auto& spec = model.units[unit];
            const auto begin = unit_range(order, spec).begin;
            for (auto tensor = spec.first_tensor; tensor < spec.first_tensor + spec.tensor_count;
                 ++tensor) {
                const auto range = order.range(tensor);
                for (std::uint64_t i = 0; i < range.size(); ++i) {
                    const auto at = range.begin - begin + i;
                    for (unsigned part = first; part < end; ++part) {
                        const float own = synthetic_gradient(weights[at], tensor, i, iteration,
                                                             10 * index + part);
                        gradient[at] = part == 0 ? own : gradient[at] + own;
                    }
                }
            }
        });
        worker.release_gradient(unit);
        worker.release_weights(unit);
    }
};

/// An engine on a new state folder, in as little host memory as asked.
class Engine {
  public:
    Engine(const Passes& passes, const std::string& device, std::size_t host_bytes,
           unsigned group_ranks = 0)
        : passes_(passes),
          device_(cuda::make_device(device, host_bytes)),
          compute_(device_->create_stream("compute")) {
        std::filesystem::create_directory(folder_.path() / "drive");
        PlanRequest request;
        request.device_kind = device_->memory_kind();
        request.host_bytes = host_bytes;
        request.device_bytes = std::size_t{4} << 20;
        request.nvme = NvmeTier::present;
        request.chunk_bytes = std::size_t{64} << 10;
        request.training_uses = passes.model.uses;
        request.gradient_uses = passes.model.gradient_uses;
        const auto plan = make_plan(passes.order, passes.model.units, request);
        OffloadOptions options;
        options.isa = cpu_optim::best_isa();
        options.group_ranks = group_ranks;
        engine_.emplace(StateFolder::create(folder_.path() / "out", folder_.path() / "drive",
                                            passes.model.tensors, "on", "{}", plan.planes),
                        passes.order, passes.model.units, *device_, *compute_, plan, options);
        engine_->initialise(
            [](TensorId tensor, std::uint64_t first, std::span<float> out) {
                for (std::size_t i = 0; i < out.size(); ++i)
                    out[i] = synthetic_initial(tensor, first + i);
            },
            {0, "start"});
    }

    [[nodiscard]] OffloadEngine& get() { return *engine_; }
    [[nodiscard]] cuda::Stream& compute() { return *compute_; }

    /// Clips, so that all of a gradient counts.
    void update() {
        const auto summary = engine_->finish_gradients();
        norms.push_back(summary.norm);
        const auto groups = synthetic_adamw();
        engine_->begin_update({HyperGroups::Elementwise(groups.begin(), groups.end()),
                               std::min(1.0, 0.05 / summary.norm)});
    }
    std::vector<float> masters() {
        std::vector<float> all;
        engine_->visit_masters([&](TensorId, std::uint64_t, std::span<const float> values) {
            all.insert(all.end(), values.begin(), values.end());
        });
        return all;
    }

    std::vector<double> norms;

  private:
    const TemporaryFolder folder_;
    const Passes& passes_;
    std::unique_ptr<cuda::Device> device_;
    std::unique_ptr<cuda::Stream> compute_;
    std::optional<OffloadEngine> engine_;
};

GroupPlan plan_of(const Passes& passes, unsigned ranks, std::size_t device_bytes) {
    return plan_group(passes.order, passes.model.units,
                      {.ranks = ranks,
                       .device_bytes = device_bytes,
                       .training_uses = passes.model.uses,
                       .gradient_uses = passes.model.gradient_uses});
}

std::size_t kept_bytes(const GroupPlan& plan) {
    const auto is_of_shares = [](const MemoryItem& item) {
        return item.name == "shares of weights";
    };
    return std::ranges::find_if(plan.device_items, is_of_shares)->bytes;
}

/// With which a device keeps no share and has room for one gradient.
std::size_t least_bytes(const Passes& passes, unsigned ranks) {
    const auto plan = plan_of(passes, ranks, std::size_t{64} << 20);
    return plan.device_bytes - kept_bytes(plan) - plan.gradient_bytes;
}

/// Simulated devices with delays of their own, and the group of them.
class Group {
  public:
    struct Settings {
        unsigned ranks = 2;
        std::size_t host_bytes = std::size_t{1} << 30;
        std::size_t device_bytes = std::size_t{16} << 20;
        double patience_s = 60;
    };

    Group(const Passes& passes, const Settings& settings)
        : passes_(passes),
          engine(passes, "cpu", settings.host_bytes, settings.ranks),
          plan(plan_of(passes, settings.ranks, settings.device_bytes)) {
        std::vector<GroupMember> members;
        for (unsigned rank = 0; rank < settings.ranks; ++rank) {
            cuda::SimOptions options;
            options.capacity_bytes = settings.device_bytes;
            options.max_random_delay_s = 50e-6;
            options.seed = rank;
            options.name = "sim " + std::to_string(rank);
            devices.push_back(cuda::make_sim_device(options));
            streams.push_back(devices.back()->create_stream("compute"));
            members.push_back({*devices.back(), *streams.back()});
        }
        group.emplace(engine.get(), passes.order, passes.model.units, plan, members,
                      GroupOptions{.patience_s = settings.patience_s});
    }

    [[nodiscard]] Worker worker(unsigned rank) {
        auto& g = *group;
        const auto ranks = static_cast<unsigned>(streams.size());
        return {[&g, rank](std::size_t unit) { return g.acquire_weights(rank, unit); },
                [&g, rank](std::size_t unit) { g.release_weights(rank, unit); },
                [&g, rank](std::size_t unit) { return g.acquire_gradient(rank, unit); },
                [&g, rank](std::size_t unit) { g.release_gradient(rank, unit); },
                *streams[rank],
                rank * parts / ranks,
                (rank + 1) * parts / ranks};
    }

    void step(std::uint64_t iteration) {
        group->begin_pass(passes_.model.uses);
        group->run_pass([&](unsigned rank) {
            passes_.step(worker(rank), iteration);
            streams[rank]->synchronize();
        });
        engine.update();
    }

    std::string failure(const std::function<void(unsigned)>& work) {
        try {
            group->begin_pass(passes_.model.uses);
            group->run_pass(work);
        } catch (const RankFailed& failed) {
            return failed.what();
        }
        return "no rank failed";
    }

  private:
    const Passes& passes_;

  public:
    Engine engine;
    GroupPlan plan;
    std::vector<std::unique_ptr<cuda::Device>> devices;
    std::vector<std::unique_ptr<cuda::Stream>> streams;
    std::optional<DeviceGroup> group;
};

struct Outcome {
    std::vector<float> masters;
    std::vector<double> norms;
};

const Outcome& of_one_device() {
    static const auto outcome = [] {
        const Passes passes;
        Engine engine(passes, "sim:64MiB", std::size_t{1} << 30);
        auto& e = engine.get();
        for (std::uint64_t iteration = 0; iteration < steps; ++iteration) {
            e.begin_pass(passes.model.uses);
            passes.step({[&](std::size_t unit) { return e.acquire_weights(unit); },
                         [&](std::size_t unit) { e.release_weights(unit); },
                         [&](std::size_t unit) { return e.acquire_gradient(unit); },
                         [&](std::size_t unit) { e.release_gradient(unit); }, engine.compute()},
                        iteration);
            engine.update();
        }
        return Outcome{engine.masters(), engine.norms};
    }();
    return outcome;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("devices that share a step have the bits of one, however many and however placed") {
    const Passes passes;
    const auto [ranks, starved] =
        GENERATE(table<unsigned, bool>({{1u, false}, {2u, true}, {3u, true}, {4u, false}}));
    CAPTURE(ranks, starved);
    Group::Settings settings{.ranks = ranks};
    // Planes on the drive and no share kept, or all in memory and shares kept.
    if (starved) {
        settings.host_bytes = std::size_t{19} << 20;
        settings.device_bytes = least_bytes(passes, ranks);
    }
    Group group(passes, settings);
    CHECK((kept_bytes(group.plan) == 0) == starved);
    CHECK(group.plan.gradient_slots == (starved ? 1 : 2));
    for (std::uint64_t iteration = 0; iteration < steps; ++iteration)
        group.step(iteration);
    CHECK(same_bits(group.engine.masters(), of_one_device().masters));
    CHECK(group.engine.norms == of_one_device().norms);
    CHECK((group.engine.get().statistics().nvme_read_bytes > 0) == starved);
    std::uint64_t up = 0, down = 0;
    for (const auto& device : group.devices) {
        const auto seen = device->statistics();
        CHECK(seen.peak_bytes == group.plan.device_bytes);
        up += seen.to_device_bytes;
        down += seen.to_host_bytes;
    }
    CHECK(up == steps * group.plan.to_device_bytes_per_step);
    CHECK(down == steps * group.plan.to_host_bytes_per_step);
}

TEST_CASE("each device holds its part of the shares, and the working set") {
    const Passes passes;
    constexpr auto plenty = std::size_t{64} << 20;
    const auto whole = kept_bytes(plan_of(passes, 1, plenty));
    for (const unsigned ranks : {2u, 4u, 8u}) {
        const auto share = kept_bytes(plan_of(passes, ranks, plenty));
        CHECK(share >= whole / ranks);
        // Whole tiles: each unit rounds up by one at most.
        CHECK(share <= whole / ranks + passes.model.units.size() * tile_elements * sizeof(float));
    }
    CHECK_THROWS_AS(plan_of(passes, 2, least_bytes(passes, 2) - 1), PlanRefused);
}

TEST_CASE("a rank that throws ends the pass for all, by its name, and the group with it") {
    const Passes passes;
    Group group(passes, {});
    const auto work = [&](unsigned rank) {
        if (rank == 1)
            throw std::runtime_error("out of luck");
        passes.step(group.worker(rank), 0);
        group.streams[rank]->synchronize();
    };
    CHECK(group.failure(work) == "rank 1 of 2 (sim 1) could not go on: out of luck");
    CHECK(group.failure(work) == "rank 1 of 2 (sim 1) could not go on: out of luck");
}

TEST_CASE("a kernel that fails on one device ends the pass for all, with what it said") {
    const Passes passes;
    Group group(passes, {.ranks = 3});
    const auto said = group.failure([&](unsigned rank) {
        if (rank == 1)
            group.streams[rank]->launch("bad", [] { throw std::runtime_error("a bad kernel"); });
        passes.step(group.worker(rank), 0);
        group.streams[rank]->synchronize();
    });
    // The others may see first that rank 1 does not come.
    CHECK_THAT(said, Catch::Contains("could not go on") &&
                         (Catch::Contains("a bad kernel") || Catch::Contains("of rank 1 failed")));
}

TEST_CASE("a device that hangs is named by the others within their patience") {
    const Passes passes;
    Group group(passes, {.ranks = 2, .patience_s = 0.2});
    std::atomic<bool> others_know{false};
    const auto said = group.failure([&](unsigned rank) {
        if (rank == 1)
            group.streams[rank]->launch("hang", [&] { others_know.wait(false); });
        try {
            passes.step(group.worker(rank), 0);
            group.streams[rank]->synchronize();
        } catch (const std::exception&) {
            others_know = true;
            others_know.notify_all();
            throw;
        }
    });
    CHECK_THAT(
        said, Catch::Contains("all_gather") && Catch::Contains("rank 1 did not come within 0.2 s"));
}

TEST_CASE("a rank that ends before its time is said so, not waited for") {
    const Passes passes;
    Group group(passes, {});
    CHECK_THAT(group.failure([&](unsigned rank) {
        if (rank == 0)
            passes.step(group.worker(rank), 0);
        group.streams[rank]->synchronize();
    }),
               Catch::Contains("rank 1 of 2 (sim 1)") && Catch::Contains("uses of weights left"));
}

TEST_CASE("a group takes no device that computes in host memory") {
    const Passes passes;
    Engine engine(passes, "cpu", std::size_t{1} << 30);
    const auto cpu = cuda::make_device("cpu", std::size_t{1} << 20);
    const auto stream = cpu->create_stream("compute");
    GroupPlan plan;
    plan.ranks = 1;
    CHECK_THROWS_WITH(
        DeviceGroup(engine.get(), passes.order, passes.model.units, plan, {{*cpu, *stream}}, {}),
        Catch::Contains("cpu cannot be in one"));
}
