// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/synthetic_training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cpu_optim/gradient_clip.h"

namespace spillway::testing {
namespace {

using namespace spillway::offload;

float unit_hash(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    auto x = a * 0x9E3779B97F4A7C15u + b * 0xBF58476D1CE4E5B9u + c * 0x94D049BB133111EBu;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return static_cast<float>(static_cast<double>((x ^ (x >> 31)) >> 40) /
                              static_cast<double>(1 << 24)) -
           0.5f;
}

bool contains(const std::vector<std::uint64_t>& list, std::uint64_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

HyperGroups groups_of(const SyntheticRun& run) {
    if (run.adafactor)
        return HyperGroups::Factored(run.adafactor->begin(), run.adafactor->end());
    if (run.layerwise)
        return HyperGroups::Layerwise(run.layerwise->begin(), run.layerwise->end());
    return HyperGroups::Elementwise(run.groups.begin(), run.groups.end());
}

/// One engine and what its "passes" need.
class Client {
  public:
    explicit Client(const SyntheticRun& run)
        : run_(run),
          model_(run.model),
          order_(model_.tensors),
          device_(cuda::make_device(run.placement.device, std::size_t{1} << 30)),
          compute_(device_->create_stream("compute")) {}

    ~Client() {
        inputs_.reset();
        compute_->synchronize();
    }
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    SyntheticOutcome train();

  private:
    [[nodiscard]] bool input_leaves(std::size_t unit) const {
        return inputs_ != nullptr && unit + 2 < model_.units.size();
    }
    void open_inputs(const OffloadPlan& plan);
    void make_input(std::size_t unit, std::uint64_t iteration);
    void use_input(std::size_t unit, std::uint64_t iteration);
    void scale(UpdateStep& step, const GradientSummary& summary) const;
    void pass(std::uint64_t iteration);
    void reading_pass();
    void read_averages(SyntheticOutcome& outcome);
    void contribution(std::size_t unit, const float* weights, std::uint64_t iteration,
                      unsigned index);

    const SyntheticRun& run_;
    const SyntheticModel& model_;
    ElementOrder order_;
    std::unique_ptr<cuda::Device> device_;
    std::unique_ptr<cuda::Stream> compute_;
    std::array<cuda::DeviceBuffer, 2> places_;  ///< that inputs take turns in
    std::uint64_t wrong_inputs_ = 0;            ///< touched by the compute stream
    std::unique_ptr<OffloadEngine> engine_;
    std::unique_ptr<ActivationStore> inputs_;
};

void Client::open_inputs(const OffloadPlan& plan) {
    inputs_ = engine_->open_activations(*device_, *compute_);
    if (inputs_ == nullptr)
        return;
    for (auto& place : places_)
        place = device_->allocate(plan.activations.bytes);
}

/// Every byte tells of unit and iteration.
std::byte input_value(std::size_t unit, std::uint64_t iteration, std::size_t i) {
    return static_cast<std::byte>(unit * 37 + iteration * 101 + i * 7 + i / 4096);
}

void Client::make_input(std::size_t unit, std::uint64_t iteration) {
    if (inputs_ == nullptr)
        return;
    if (unit >= 2)
        inputs_->wait_saved(unit - 2, 0);
    auto* const at = places_.at(unit % 2).data();
    compute_->launch("make", [=, bytes = run_.placement.input_bytes] {
        for (std::size_t i = 0; i < bytes; ++i)
            at[i] = input_value(unit, iteration, i);
    });
    if (input_leaves(unit))
        inputs_->save(unit, 0, at);
}

void Client::use_input(std::size_t unit, std::uint64_t iteration) {
    if (inputs_ == nullptr)
        return;
    if (input_leaves(unit))
        inputs_->wait_fetched(unit, 0);
    auto* const at = places_.at(unit % 2).data();
    compute_->launch("use", [=, this] {
        bool same = true;
        for (std::size_t i = 0; i < run_.placement.input_bytes; ++i)
            same = same && at[i] == input_value(unit, iteration, i);
        wrong_inputs_ += same ? 0 : 1;
    });
    if (unit >= 2)
        inputs_->fetch(unit - 2, 0, at);
}

void Client::contribution(std::size_t unit, const float* weights, std::uint64_t iteration,
                          unsigned index) {
    auto* const gradient = engine_->acquire_gradient(unit);
    const auto& spec = model_.units[unit];
    const auto begin = unit_range(order_, spec).begin;
    const bool bad = contains(run_.nonfinite_iterations, iteration);
    compute_->launch("gradient", [=, this] {
        for (auto tensor = spec.first_tensor; tensor < spec.first_tensor + spec.tensor_count;
             ++tensor) {
            const auto range = order_.range(tensor);
            for (std::uint64_t i = 0; i < range.size(); ++i) {
                const auto at = range.begin - begin + i;
                gradient[at] = synthetic_gradient(weights[at], tensor, i, iteration, index);
            }
        }
        if (bad && unit == 1)
            gradient[3] = std::numeric_limits<float>::quiet_NaN();
    });
    engine_->release_gradient(unit);
}

void Client::reading_pass() {
    engine_->begin_pass(model_.uses);
    for (const auto unit : model_.uses) {
        (void)engine_->acquire_weights(unit);
        engine_->release_weights(unit);
    }
}

void Client::read_averages(SyntheticOutcome& outcome) {
    engine_->visit_masters(
        [&](TensorId, std::uint64_t, std::span<const float> values) {
            outcome.averages.insert(outcome.averages.end(), values.begin(), values.end());
        },
        WeightKind::averaged);
    engine_->begin_pass(model_.uses, WeightKind::averaged);
    std::size_t uses = 0;
    for (const auto unit : model_.uses) {
        const auto* const weights = engine_->acquire_weights(unit);
        const auto& spec = model_.units[unit];
        const auto begin = unit_range(order_, spec).begin;
        for (auto tensor = spec.first_tensor;
             uses < model_.units.size() && tensor < spec.first_tensor + spec.tensor_count;
             ++tensor) {
            const auto range = order_.range(tensor);
            compute_->launch("copy", [=, &outcome] {
                outcome.averages_read.insert(outcome.averages_read.end(),
                                             weights + (range.begin - begin),
                                             weights + (range.end - begin));
            });
        }
        ++uses;
        engine_->release_weights(unit);
    }
    compute_->synchronize();
}

/// Forward 0 .. n-1, then 0 again (the tied head), then backward from the last unit on.
void Client::pass(std::uint64_t iteration) {
    const auto units = model_.units.size();
    for (std::size_t unit = 0; unit < units; ++unit) {
        (void)engine_->acquire_weights(unit);
        make_input(unit, iteration);
        engine_->release_weights(unit);
    }
    const auto* const tied = engine_->acquire_weights(0);
    contribution(0, tied, iteration, 0);
    engine_->release_weights(0);
    for (auto unit = units; unit-- > 0;) {
        const auto* const weights = engine_->acquire_weights(unit);
        use_input(unit, iteration);
        contribution(unit, weights, iteration, unit == 0 ? 1 : 0);
        engine_->release_weights(unit);
    }
}

void Client::scale(UpdateStep& step, const GradientSummary& summary) const {
    const auto& clip = run_.clip;
    if (clip.layer) {
        for (const auto squares : summary.tensor_squares)
            step.tensor_scales.push_back(cpu_optim::clip_coefficient(*clip.layer, squares, 1.0));
    } else if (!clip.value && clip.norm > 0) {
        step.gradient_scale = std::min(1.0, clip.norm / (summary.norm + 1e-6));
    }
}

SyntheticOutcome Client::train() {
    SyntheticOutcome outcome;
    outcome.plan = make_plan(order_, model_.units, synthetic_request(run_, device_->memory_kind()));
    const auto& placement = run_.placement;
    const bool fresh = !StateFolder::holds_run(run_.out);
    auto folder = fresh ? StateFolder::create(run_.out, run_.nvme, model_.tensors,
                                              placement.durability == Durability::on ? "on" : "off",
                                              "{}", outcome.plan.planes, run_.more_nvme,
                                              std::nullopt, outcome.plan.second_moments)
                        : StateFolder::open(run_.out, LockMode::exclusive);
    OffloadOptions options;
    options.threads = placement.threads;
    options.isa = placement.isa;
    options.io.every_drive.backend = placement.backend;
    options.durability = placement.durability;
    options.timing = placement.timing;
    options.norms = run_.clip.layer ? GradientNorms::of_each_tensor : GradientNorms::of_all;
    options.rounding_seed = synthetic_rounding_seed;
    options.average = run_.average;
    options.io.drive_rates = run_.drive_rates;
    options.io.backend_factory = placement.backend_factory;
    engine_ = std::make_unique<OffloadEngine>(std::move(folder), order_, model_.units, *device_,
                                              *compute_, outcome.plan, options);
    open_inputs(outcome.plan);
    std::uint64_t iteration = 0;
    if (const auto recovered = engine_->recover()) {
        iteration = recovered->iteration;
        outcome.resumed_from = iteration;
    } else {
        engine_->initialise(
            [](TensorId tensor, std::uint64_t first, std::span<float> out) {
                for (std::size_t i = 0; i < out.size(); ++i)
                    out[i] = synthetic_initial(tensor, first + i);
            },
            {0, "start"});
    }
    for (; iteration < run_.steps; ++iteration) {
        for (std::uint64_t reading = 0; reading < run_.reading_passes; ++reading)
            reading_pass();
        engine_->begin_pass(model_.uses);
        UpdateStep step{.groups = groups_of(run_), .most_gradient = run_.clip.value};
        if (placement.timing == UpdateTiming::as_completed)
            engine_->begin_update(step);
        pass(iteration);
        const auto summary = engine_->finish_gradients();
        outcome.norms.push_back(summary.norm);
        if (placement.timing == UpdateTiming::after_norm) {
            if (summary.nonfinite != 0) {
                engine_->skip_update();
            } else {
                scale(step, summary);
                engine_->begin_update(step);
            }
        }
        if (placement.commit_every != 0 && (iteration + 1) % placement.commit_every == 0)
            engine_->request_commit({iteration + 1, "note"});
        if (run_.after_step)
            run_.after_step(iteration + 1);
    }
    if (run_.end == SyntheticEnd::abandoned)
        return outcome;
    engine_->request_commit({run_.steps, "end"});
    engine_->wait_idle();
    engine_->visit_masters([&](TensorId, std::uint64_t, std::span<const float> values) {
        outcome.masters.insert(outcome.masters.end(), values.begin(), values.end());
    });
    if (engine_->has_average())
        read_averages(outcome);
    outcome.statistics = engine_->statistics();
    outcome.updates = engine_->update();
    compute_->synchronize();
    outcome.wrong_inputs = wrong_inputs_;
    return outcome;
}

}  // namespace

SyntheticGroups synthetic_adamw() {
    return {cpu_optim::AdamHyperParameters{3e-2, 0.9, 0.95, 1e-8, 0.1},
            cpu_optim::AdamHyperParameters{1e-2, 0.9, 0.95, 1e-8, 0.0}};
}

SyntheticModel synthetic_model(int blocks) {
    SyntheticModel model;
    const auto add_unit = [&](std::vector<std::uint64_t> sizes) {
        Unit unit{static_cast<TensorId>(model.tensors.size()),
                  static_cast<std::uint32_t>(sizes.size())};
        for (const auto size : sizes) {
            const auto id = model.tensors.size();
            model.tensors.push_back(
                {"tensor." + std::to_string(id), {size}, static_cast<std::uint32_t>(id % 2), 1});
        }
        model.units.push_back(unit);
    };
    add_unit({70001});  // tied
    model.tensors[0].contributions = 2;
    add_unit({513, 0, 1});
    for (int block = 0; block < blocks; ++block)
        add_unit({100000, 257, 60000 + static_cast<std::uint64_t>(block), 3});
    add_unit({127});
    const auto units = model.units.size();
    for (std::size_t unit = 0; unit < units; ++unit)
        model.uses.push_back(unit);
    model.uses.push_back(0);
    model.gradient_uses.push_back(0);
    for (auto unit = units; unit-- > 0;) {
        model.uses.push_back(unit);
        model.gradient_uses.push_back(unit);
    }
    return model;
}

ActivationLayout synthetic_inputs(const SyntheticModel& model, std::size_t input_bytes) {
    if (input_bytes == 0)
        return {};
    ActivationLayout layout{.tiers = std::vector(model.units.size(), ActivationTier::nvme),
                            .micro_batches = 1,
                            .bytes = input_bytes};
    std::fill(layout.tiers.end() - 2, layout.tiers.end(), ActivationTier::device);
    return layout;
}

SyntheticModel matrix_model_of(SyntheticModel model) {
    const std::array<std::vector<std::uint64_t>, 3> shapes{{{250, 400}, {5, 20000}, {50, 40, 50}}};
    std::size_t count = 0;
    for (auto& tensor : model.tensors) {
        if (tensor.elements() == 100000)
            tensor.shape = shapes.at(count++ % shapes.size());
    }
    return model;
}

float synthetic_initial(TensorId tensor, std::uint64_t element) {
    return unit_hash(tensor, element, 77);
}

float synthetic_gradient(float weight, TensorId tensor, std::uint64_t element,
                         std::uint64_t iteration, unsigned index) {
    return 0.01f * weight + 0.02f * unit_hash(tensor + 1000 * index, element, iteration);
}

PlanRequest synthetic_request(const SyntheticRun& run, cuda::MemoryKind device) {
    const auto& placement = run.placement;
    const auto needs = groups_of(run).needs();
    PlanRequest request;
    request.device_kind = device;
    request.host_bytes = placement.host_bytes;
    request.device_bytes = placement.device_bytes;
    request.planes = planes_with_weights(needs.state_planes, run.state);
    if (run.average)
        request.planes.insert(Plane::average);
    request.passes = needs.passes;
    request.second_moments = groups_of(run).second_moments();
    request.nvme = placement.nvme ? NvmeTier::present : NvmeTier::absent;
    request.drives = 1 + run.more_nvme.size();
    request.chunk_bytes = placement.chunk_bytes;
    request.windows = placement.windows;
    request.timing = placement.timing;
    request.durability = placement.durability;
    request.training_uses = run.model.uses;
    request.gradient_uses = run.model.gradient_uses;
    request.activations = synthetic_inputs(run.model, placement.input_bytes);
    return request;
}

SyntheticOutcome run_synthetic(const SyntheticRun& run) {
    return Client(run).train();
}

}  // namespace spillway::testing
