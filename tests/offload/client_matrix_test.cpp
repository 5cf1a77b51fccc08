// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nvme/io_backend.h"
#include "offload/tensor_optimizer.h"
#include "tests/offload/tensor_model.h"
#include "tests/support/combinations.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::StateFormat;

namespace {

constexpr std::uint64_t steps = 4;

/// Steps that change the weights alike: all that may change a bit.
struct StepClass {
    std::string name;
    HyperGroups groups;
    StateFormat state = StateFormat::fp32;
    StepRule rule = {.gradient_scale = 0.75};

    [[nodiscard]] bool may_stream() const {
        return !rule.max_norm && rule.nonfinite == NonfiniteRule::propagate;
    }
};

std::vector<StepClass> step_classes() {
    using namespace cpu_optim;
    const HyperGroups adam{AdamHyperParameters{.learning_rate = 0.01},
                           AdamHyperParameters{.learning_rate = 0.005, .weight_decay = 0}};
    const StepRule clipped{.gradient_scale = 0.75, .max_norm = 0.5};
    return {
        {.name = "adamw", .groups = adam},
        {.name = "adamw, another scale", .groups = adam, .rule = {.gradient_scale = 0.7500001}},
        {.name = "adamw, clipped", .groups = adam, .rule = clipped},
        {.name = "adamw, bf16", .groups = adam, .state = StateFormat::bf16},
        {.name = "adamw, int8", .groups = adam, .state = StateFormat::int8, .rule = clipped},
        {.name = "lion, bf16",
         .groups = {LionHyperParameters{.weight_decay = 0.1}, LionHyperParameters{}},
         .state = StateFormat::bf16},
        {.name = "adagrad", .groups = {AdagradHyperParameters{}, AdagradHyperParameters{}}},
        {.name = "lamb",
         .groups = {LambHyperParameters{.learning_rate = 0.1}, LambHyperParameters{}}},
        {.name = "lamb, int8",
         .groups = {LambHyperParameters{.learning_rate = 0.1}, LambHyperParameters{}},
         .state = StateFormat::int8},
        {.name = "lars, clipped",
         .groups = {LarsHyperParameters{.learning_rate = 5}, LarsHyperParameters{}},
         .rule = clipped},
        {.name = "adafactor",
         .groups = {AdafactorHyperParameters{}, AdafactorHyperParameters{.weight_decay = 0.1}}}};
}

/// When the caller goes on.
enum class Overlap {
    waits,     ///< when the update is over
    follows,   ///< tensor by tensor while it runs
    streamed,  ///< it runs while gradients still come
};
enum class Interruption { none, stopped, abandoned };

struct Placement {
    double budget = 1;  ///< 0: the least that will do, 1: all that can be used
    std::size_t chunk_bytes = 0;
    std::size_t update_slots = 4;
    std::size_t threads = 1;
    cpu_optim::Isa isa = cpu_optim::Isa::scalar;
    nvme::BackendKind backend = nvme::BackendKind::automatic;
    Overlap overlap = Overlap::waits;
    std::uint64_t commit_every = 0;
};

/// All that must not change a bit. Two placements: before and after the interruption.
struct Combination {
    StepClass kind;
    std::array<Placement, 2> placements;
    std::size_t drives = 1;
    bool durable = true;
    bool on_disk = false;
    Interruption interruption = Interruption::none;
    std::uint64_t interrupted_after = 0;
};

std::string text_of(const Placement& place) {
    constexpr std::array overlaps{"waits", "follows", "streamed"};
    return fmt::format("budget {} chunk {} KiB window {} threads {} {} {} {} commits {}",
                       place.budget, place.chunk_bytes >> 10, place.update_slots, place.threads,
                       cpu_optim::isa_name(place.isa),
                       nvme::backend_names()[static_cast<std::size_t>(place.backend)],
                       overlaps.at(static_cast<std::size_t>(place.overlap)), place.commit_every);
}

std::string text_of(const Combination& c) {
    auto text = fmt::format("{}: {} drives on {}, {}, {}", c.kind.name, c.drives,
                            c.on_disk ? "disk" : "memory", c.durable ? "durable" : "not durable",
                            text_of(c.placements[0]));
    if (c.interruption != Interruption::none)
        text += fmt::format("; {} after {}, then {}",
                            c.interruption == Interruption::stopped ? "stopped" : "abandoned",
                            c.interrupted_after, text_of(c.placements[1]));
    return text;
}

void draw_placements(Combinations& draw, std::size_t which, std::vector<Combination>& all) {
    std::vector<nvme::BackendKind> kinds{nvme::BackendKind::threads};
    if (nvme::io_uring_refusal().empty())
        kinds.push_back(nvme::BackendKind::io_uring);
    if (nvme::libaio_refusal().empty())
        kinds.push_back(nvme::BackendKind::libaio);
    const auto budgets = draw.column<double>({0, 0, 0.2, 0.5, 0.8, 1});
    const auto chunks = draw.column<std::size_t>({64, 64, 128, 192, 1024, 0});
    const auto threads = draw.column<std::size_t>({1, 2, 3});
    const auto isas = draw.column(mostly_fast_isas());
    const auto backends = draw.column(kinds);
    const auto overlaps =
        draw.column<Overlap>({Overlap::waits, Overlap::follows, Overlap::streamed});
    const auto commits = draw.column<std::uint64_t>({0, 1, 2});
    const auto windows = draw.column<std::size_t>({1, 2, 4, 9});
    for (std::size_t i = 0; i < all.size(); ++i) {
        auto& place = all[i].placements.at(which);
        place = {budgets[i], chunks[i] << 10, windows[i],  threads[i],
                 isas[i],    backends[i],     overlaps[i], all[i].durable ? commits[i] : 0};
        if (place.overlap == Overlap::streamed && !all[i].kind.may_stream())
            place.overlap = Overlap::follows;
    }
}

std::vector<Combination> draw_all(Combinations& draw, std::size_t count) {
    std::vector<Combination> all(count);
    const auto kinds = draw.column(step_classes());
    const auto drives = draw.column<std::size_t>({1, 1, 2, 3});
    const auto durable = draw.column<int>({1, 1, 0});
    const auto on_disk = draw.column<int>({0, 0, 0, 1});
    const auto interruptions = draw.column<Interruption>(
        {Interruption::none, Interruption::stopped, Interruption::abandoned});
    const auto after = draw.column<std::uint64_t>({1, 2, 3});
    for (std::size_t i = 0; i < count; ++i) {
        auto& c = all[i];
        c.kind = kinds[i];
        c.drives = drives[i];
        c.durable = durable[i] != 0;
        c.on_disk = on_disk[i] != 0;
        c.interruption = c.durable ? interruptions[i] : Interruption::none;
        c.interrupted_after = after[i];
    }
    draw_placements(draw, 0, all);
    draw_placements(draw, 1, all);
    return all;
}

/// Gradients of one step; they must outlive it.
using StepGradients = std::vector<std::vector<std::byte>>;

/// Of all steps, whoever takes them: by iteration.
std::vector<StepGradients> all_gradients() {
    const auto model = matrix_model();
    std::vector<StepGradients> all(steps + 1);
    for (std::uint64_t iteration = 1; iteration <= steps; ++iteration) {
        for (std::size_t index = 0; index < model.size(); ++index)
            all[iteration].push_back(gradient_bytes_of(model[index], index, iteration));
    }
    return all;
}

/// One optimizer's life over some steps, from the last commit or the beginning on.
class Stage {
  public:
    Stage(const Combination& c, std::size_t which, const std::vector<StepGradients>& gradients,
          const std::filesystem::path& folder)
        : kind_(c.kind),
          place_(c.placements.at(which)),
          gradients_(gradients),
          model_(matrix_model()) {
        TensorOptimizerOptions options;
        options.nvme = folder / "0";
        for (std::size_t drive = 1; drive < c.drives; ++drive)
            options.more_nvme.push_back(folder / std::to_string(drive));
        if (c.durable)
            options.out = folder / "out";
        options.state = kind_.state;
        options.rounding_seed = client_rounding_seed;
        options.chunk_bytes = place_.chunk_bytes;
        options.windows.update_slots = place_.update_slots;
        options.threads = place_.threads;
        options.isa = place_.isa;
        options.io.every_drive.backend = place_.backend;
        options.host_bytes = host_bytes(options);
        optimizer_.emplace(parameters_of(model_), kind_.groups, options);
        CHECK(optimizer_->statistics().host_bytes <= options.host_bytes);
        if (c.durable) {
            if (const auto commit = optimizer_->recover())
                done_ = commit->iteration;
        }
    }

    /// Until `last`; a commit of it only if that is asked for.
    void run(std::uint64_t last, Interruption ending) {
        while (done_ < last) {
            step(++done_);
            const bool due = place_.commit_every != 0 && done_ % place_.commit_every == 0;
            if (due || (done_ == last && ending == Interruption::stopped)) {
                optimizer_->begin_commit({done_, ""});
                if (done_ != last || ending != Interruption::abandoned)
                    optimizer_->wait();
            }
        }
        if (ending != Interruption::abandoned)
            optimizer_->wait();
    }

    [[nodiscard]] std::uint64_t done() const noexcept { return done_; }
    [[nodiscard]] std::vector<std::uint32_t> bits() const { return bits_of(model_); }
    [[nodiscard]] std::uint64_t read_bytes() const {
        return optimizer_->statistics().nvme_read_bytes;
    }

  private:
    [[nodiscard]] std::size_t host_bytes(TensorOptimizerOptions options) {
        std::size_t least = 0;
        options.host_bytes = 0;
        try {
            TensorOptimizer::check_room(parameters_of(model_), kind_.groups, options);
        } catch (const PlanRefused& refused) {
            least = refused.needed_bytes;
        }
        constexpr std::size_t all_state = std::size_t{6} << 20;
        return least + static_cast<std::size_t>(place_.budget * static_cast<double>(all_state));
    }

    void give(std::uint64_t iteration) {
        for (auto tensor = static_cast<TensorId>(model_.size()); tensor-- > 0;) {
            if (model_[tensor].has_gradient(iteration))
                optimizer_->give_gradient(
                    tensor, {gradients_[iteration][tensor].data(), model_[tensor].gradient_type});
        }
    }

    void step(std::uint64_t iteration) {
        if (place_.overlap == Overlap::streamed) {
            optimizer_->begin_streamed_step(kind_.rule.gradient_scale);
            give(iteration);
            optimizer_->end_gradients();
        } else {
            give(iteration);
            static_cast<void>(optimizer_->begin_step(kind_.rule));
        }
        if (place_.overlap == Overlap::waits)
            optimizer_->wait();
        else
            for (TensorId tensor = 0; tensor < model_.size(); ++tensor)
                optimizer_->wait_for(tensor);
    }

    const StepClass& kind_;
    const Placement& place_;
    const std::vector<StepGradients>& gradients_;
    std::vector<ClientTensorValues> model_;
    std::optional<TensorOptimizer> optimizer_;
    std::uint64_t done_ = 0;
};

struct Tally {
    std::size_t streamed = 0;  ///< combinations whose steps read from a drive
    std::size_t resumed = 0;   ///< that went on from a commit
};

std::vector<std::uint32_t> bits_of(const Combination& c,
                                   const std::vector<StepGradients>& gradients, Tally& tally) {
    const TemporaryFolder folder(c.on_disk ? std::filesystem::current_path() : quick_place());
    for (std::size_t drive = 0; drive < c.drives; ++drive)
        std::filesystem::create_directory(folder.path() / std::to_string(drive));
    std::size_t which = 0;
    if (c.interruption != Interruption::none) {
        Stage(c, which++, gradients, folder.path()).run(c.interrupted_after, c.interruption);
    }
    Stage last(c, which, gradients, folder.path());
    if (c.interruption == Interruption::stopped)
        CHECK(last.done() == c.interrupted_after);
    CHECK(last.done() <= c.interrupted_after);
    tally.resumed += last.done() != 0 ? 1U : 0U;
    last.run(steps, Interruption::none);
    tally.streamed += last.read_bytes() != 0 ? 1U : 0U;
    return last.bits();
}

/// In host memory, by one thread with plain arithmetic.
std::vector<std::uint32_t> plain_bits(const StepClass& kind,
                                      const std::vector<StepGradients>& gradients) {
    Tally tally;
    Combination plain;
    plain.kind = kind;
    plain.durable = false;
    return bits_of(plain, gradients, tally);
}

}  // namespace

TEST_CASE("placement matrix: a client's steps end with one set of weights") {
    constexpr std::size_t count = 128;
    Combinations draw("placement matrix of client tensors", count);
    const auto all = draw_all(draw, count);
    const auto gradients = all_gradients();
    std::map<std::string, std::vector<std::uint32_t>> expected;
    for (const auto& kind : step_classes())
        expected.emplace(kind.name, plain_bits(kind, gradients));
    check_classes_differ(expected);
    Tally tally;
    check_combinations(
        draw, [&](std::size_t index) { return text_of(all[index]); },
        [&](std::size_t index) {
            return bits_of(all[index], gradients, tally) == expected.at(all[index].kind.name);
        });
    if (draw.chosen().size() == count) {
        CHECK(tally.streamed > count / 3);
        CHECK(tally.resumed > count / 4);
    }
}
