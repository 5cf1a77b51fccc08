// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/synthetic_training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cpu_optim/gradient_clip.h"
#include "cpu_optim/gradient_scan.h"
#include "tests/offload/whole_layer.h"
#include "tests/offload/whole_state.h"

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

/// One engine and what its "passes" need.
class Client {
  public:
    Client(const SyntheticRun& run, const SyntheticModel& model)
        : run_(run),
          model_(model),
          order_(model.tensors),
          device_(cuda::make_device(run.placement.device, std::size_t{1} << 30)),
          compute_(device_->create_stream("compute")) {}

    SyntheticOutcome train();

  private:
    PlanRequest request() const;
    HyperGroups groups() const;
    void scale(UpdateStep& step, const GradientSummary& summary) const;
    void pass(std::uint64_t iteration);
    void reading_pass();
    void contribution(std::size_t unit, const float* weights, std::uint64_t iteration,
                      unsigned index);

    const SyntheticRun& run_;
    const SyntheticModel& model_;
    ElementOrder order_;
    std::unique_ptr<cuda::Device> device_;
    std::unique_ptr<cuda::Stream> compute_;
    std::unique_ptr<OffloadEngine> engine_;
};

PlanRequest Client::request() const {
    const auto& placement = run_.placement;
    PlanRequest request;
    request.device_kind = device_->memory_kind();
    request.host_bytes = placement.host_bytes;
    request.device_bytes = placement.device_bytes;
    const auto needs = groups().needs();
    request.planes = planes_with_weights(needs.state_planes, run_.state);
    request.passes = needs.passes;
    request.nvme = placement.nvme ? NvmeTier::present : NvmeTier::absent;
    request.drives = 1 + run_.more_nvme.size();
    request.chunk_bytes = placement.chunk_bytes;
    request.timing = placement.timing;
    request.durability = placement.durability;
    request.training_uses = model_.uses;
    request.gradient_uses = model_.gradient_uses;
    return request;
}

HyperGroups Client::groups() const {
    if (run_.layerwise)
        return HyperGroups::Layerwise(run_.layerwise->begin(), run_.layerwise->end());
    return HyperGroups::Elementwise(run_.groups.begin(), run_.groups.end());
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

/// Forward 0 .. n-1, then 0 again (the tied head), then backward from the last unit on.
void Client::pass(std::uint64_t iteration) {
    const auto units = model_.units.size();
    for (std::size_t unit = 0; unit < units; ++unit) {
        (void)engine_->acquire_weights(unit);
        engine_->release_weights(unit);
    }
    const auto* const tied = engine_->acquire_weights(0);
    contribution(0, tied, iteration, 0);
    engine_->release_weights(0);
    for (auto unit = units; unit-- > 0;) {
        const auto* const weights = engine_->acquire_weights(unit);
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
    outcome.plan = make_plan(order_, model_.units, request());
    const auto& placement = run_.placement;
    const bool fresh = !StateFolder::holds_run(run_.out);
    auto folder = fresh ? StateFolder::create(run_.out, run_.nvme, model_.tensors,
                                              placement.durability == Durability::on ? "on" : "off",
                                              "{}", outcome.plan.planes, run_.more_nvme)
                        : StateFolder::open(run_.out, LockMode::exclusive);
    OffloadOptions options;
    options.threads = placement.threads;
    options.isa = placement.isa;
    options.io.every_drive.backend = placement.backend;
    options.durability = placement.durability;
    options.timing = placement.timing;
    options.norms = run_.clip.layer ? GradientNorms::of_each_tensor : GradientNorms::of_all;
    options.rounding_seed = synthetic_rounding_seed;
    options.io.drive_rates = run_.drive_rates;
    options.io.backend_factory = placement.backend_factory;
    engine_ = std::make_unique<OffloadEngine>(std::move(folder), order_, model_.units, *device_,
                                              *compute_, outcome.plan, options);
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
        UpdateStep step{.groups = groups(), .most_gradient = run_.clip.value};
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
    }
    engine_->request_commit({run_.steps, "end"});
    engine_->wait_idle();
    engine_->visit_masters([&](TensorId, std::uint64_t, std::span<const float> values) {
        outcome.masters.insert(outcome.masters.end(), values.begin(), values.end());
    });
    outcome.statistics = engine_->statistics();
    outcome.updates = engine_->update();
    return outcome;
}

}  // namespace

SyntheticGroups synthetic_adamw() {
    return {cpu_optim::AdamHyperParameters{3e-2, 0.9, 0.95, 1e-8, 0.1},
            cpu_optim::AdamHyperParameters{1e-2, 0.9, 0.95, 1e-8, 0.0}};
}

SyntheticModel synthetic_model() {
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
    for (int block = 0; block < 12; ++block)
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

float synthetic_initial(TensorId tensor, std::uint64_t element) {
    return unit_hash(tensor, element, 77);
}

float synthetic_gradient(float weight, TensorId tensor, std::uint64_t element,
                         std::uint64_t iteration, unsigned index) {
    return 0.01f * weight + 0.02f * unit_hash(tensor + 1000 * index, element, iteration);
}

SyntheticOutcome run_synthetic(const SyntheticRun& run) {
    const auto model = synthetic_model();
    return Client(run, model).train();
}

namespace {

/// What an update does to one tensor: (number, masters, gradients, scale of them).
using TensorUpdate =
    std::function<void(TensorId tensor, std::uint64_t update, std::span<float> masters,
                       std::span<const float> gradients, double scale)>;

/// By tensor: the factor on its gradient.
std::vector<double> reference_scales(const ElementOrder& order, std::span<const float> gradient,
                                     const SyntheticClip& clip) {
    const auto squares_of = [&](ElementRange range) {
        double squares = 0;
        for (auto begin = range.begin; begin < range.end;) {
            const auto end = std::min(range.end, (begin / tile_elements + 1) * tile_elements);
            squares += cpu_optim::scan_gradient(cpu_optim::Isa::scalar,
                                                gradient.subspan(begin, end - begin))
                           .sum_of_squares;
            begin = end;
        }
        return squares;
    };
    const auto scale = [](double most, double squares) {
        return most > 0 ? std::min(1.0, most / (std::sqrt(squares) + 1e-6)) : 1.0;
    };
    std::vector<double> scales;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor) {
        if (clip.layer)
            scales.push_back(scale(*clip.layer, squares_of(order.range(tensor))));
        else
            scales.push_back(clip.value ? 1.0 : scale(clip.norm, squares_of({0, gradient.size()})));
    }
    return scales;
}

std::vector<float> train_reference(const ElementOrder& order, std::uint64_t steps,
                                   const SyntheticClip& clip,
                                   const std::vector<std::uint64_t>& nonfinite_iterations,
                                   const TensorUpdate& update_tensor) {
    const auto padded = order.tiles() * tile_elements;
    std::vector<float> all_masters(padded, 0.0f);
    std::vector<float> gradient(padded, 0.0f);
    const auto for_each_tensor = [&](const auto& body) {
        for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor) {
            const auto range = order.range(tensor);
            body(tensor, std::span(all_masters).subspan(range.begin, range.size()),
                 std::span(gradient).subspan(range.begin, range.size()));
        }
    };
    for_each_tensor([&](TensorId tensor, std::span<float> masters, std::span<float>) {
        for (std::size_t i = 0; i < masters.size(); ++i)
            masters[i] = synthetic_initial(tensor, i);
    });
    std::uint64_t update = 0;
    for (std::uint64_t iteration = 0; iteration < steps; ++iteration) {
        if (contains(nonfinite_iterations, iteration))
            continue;
        for_each_tensor([&](TensorId tensor, std::span<float> masters, std::span<float> sums) {
            for (std::size_t i = 0; i < masters.size(); ++i) {
                sums[i] = synthetic_gradient(masters[i], tensor, i, iteration, 0);
                if (order.tensors()[tensor].contributions == 2)
                    sums[i] += synthetic_gradient(masters[i], tensor, i, iteration, 1);
            }
        });
        const auto scales = reference_scales(order, gradient, clip);
        if (clip.value) {
            for (auto& value : gradient)
                value = std::clamp(value, -*clip.value, *clip.value);
        }
        ++update;
        for_each_tensor([&](TensorId tensor, std::span<float> masters, std::span<float> sums) {
            update_tensor(tensor, update, masters, sums, scales[tensor]);
        });
    }
    std::vector<float> result;
    for_each_tensor([&](TensorId, std::span<float> masters, std::span<float>) {
        result.insert(result.end(), masters.begin(), masters.end());
    });
    return result;
}

}  // namespace

std::vector<float> reference_synthetic(std::uint64_t steps, const SyntheticClip& clip,
                                       const std::vector<std::uint64_t>& nonfinite_iterations,
                                       const SyntheticGroups& groups,
                                       cpu_optim::StateFormat format) {
    const ElementOrder order(synthetic_model().tensors);
    std::vector<WholeState> state;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor)
        state.emplace_back(format, static_cast<std::size_t>(order.range(tensor).size()));
    return train_reference(
        order, steps, clip, nonfinite_iterations,
        [&](TensorId tensor, std::uint64_t update, std::span<float> masters,
            std::span<const float> gradients, double scale) {
            state[tensor].update(
                cpu_optim::make_coefficients(groups[order.tensors()[tensor].group], update, scale),
                {.seed = synthetic_rounding_seed, .tensor = tensor, .step = update}, masters,
                gradients);
        });
}

std::vector<float> reference_synthetic(std::uint64_t steps, const SyntheticClip& clip,
                                       const SyntheticLayerwiseGroups& groups) {
    const ElementOrder order(synthetic_model().tensors);
    std::vector<WholeLayer> layers;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor)
        layers.emplace_back(static_cast<std::size_t>(order.range(tensor).size()));
    return train_reference(order, steps, clip, {},
                           [&](TensorId tensor, std::uint64_t update, std::span<float> masters,
                               std::span<const float> gradients, double scale) {
                               layers[tensor].update(groups[order.tensors()[tensor].group], update,
                                                     scale, order.range(tensor).begin, masters,
                                                     gradients);
                           });
}

}  // namespace spillway::testing
