// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/memory_plan.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "engine/model/layer_input_places.h"
#include "engine/plan/input_placement.h"
#include "engine/settings/optimizer_choice.h"
#include "offload/step_trace.h"

namespace spillway::engine {
namespace {

/// The units whose gradients a step releases: the tied embedding for the output layer, then all in
/// reverse, the embedding again at the end.
std::vector<std::size_t> gradient_uses(const ModelLayout& layout) {
    std::vector<std::size_t> uses{0};
    for (std::size_t unit = layout.units.size(); unit > 0; --unit)
        uses.push_back(unit - 1);
    return uses;
}

/// In ascending order. In pairs, so that a large batch takes no time.
std::vector<std::uint32_t> divisors_of(std::uint32_t number) {
    std::vector<std::uint32_t> small;
    std::vector<std::uint32_t> large;
    for (std::uint32_t divisor = 1; divisor <= number / divisor; ++divisor) {
        if (number % divisor != 0)
            continue;
        small.push_back(divisor);
        if (divisor != number / divisor)
            large.push_back(number / divisor);
    }
    small.insert(small.end(), large.rbegin(), large.rend());
    return small;
}

/// Of one device among `ranks`.
std::vector<BatchShape> candidate_shapes(const TrainSettings& settings, unsigned ranks) {
    std::vector<Recompute> recomputes;
    if (settings.recompute != "full")
        recomputes.push_back(Recompute::cheap_parts);
    if (settings.recompute != "cheap-parts")
        recomputes.push_back(Recompute::full);
    std::vector<BatchShape> shapes;
    const auto sequences = settings.batch / ranks;
    for (const auto recompute : recomputes) {
        for (const auto parts : divisors_of(sequences)) {
            if (settings.micro_batches == 0 || settings.micro_batches == parts)
                shapes.push_back({sequences, settings.sequence_tokens(), parts, recompute,
                                  ranks == 1 ? 0 : settings.batch});
        }
    }
    return shapes;
}

/// Tokens of a step on their way to the device, and of an evaluation.
std::size_t token_bytes(const TrainSettings& settings) {
    return std::size_t{2} * settings.batch * (settings.sequence_tokens() + std::size_t{1}) *
           sizeof(std::int32_t);
}

std::size_t trace_bytes(const TrainSettings& settings) {
    return settings.trace.empty() ? 0 : offload::StepTrace::memory_bytes();
}

class Planning {
  public:
    Planning(const ModelLayout& layout, const TrainSettings& settings, std::size_t threads,
             const MemoryBudgets& budgets, offload::NvmeTier nvme)
        : layout_(layout), settings_(settings), threads_(threads), budgets_(budgets), nvme_(nvme) {}

    TrainPlan run() const {
        const auto shapes = candidate_shapes(settings_, budgets_.ranks);
        for (const auto& shape : shapes) {
            if (activation_bytes(shape) > budgets_.device_bytes / 2)
                continue;
            if (auto plan = try_shape(shape, 0))
                return with_weights_in_memory(*std::move(plan));
        }
        for (const auto& shape : shapes) {
            if (auto plan = try_shape(shape, 0))
                return with_weights_in_memory(*std::move(plan));
        }
        for (const auto& shape : shapes) {
            if (auto plan = try_leaving(shape))
                return *std::move(plan);
        }
        for (const auto& shape : shapes) {
            if (auto plan = try_making_again(shape))
                return *std::move(plan);
        }
        // The shape that needs least says what is missing.
        const auto least = std::ranges::min_element(shapes, {}, [&](const BatchShape& shape) {
            return activation_bytes(with_fewest_places(shape));
        });
        const auto shape = with_fewest_places(*least);
        if (shape.lost_inputs == LostInputs::made_again || nvme_ == offload::NvmeTier::present)
            return plan_shape(shape, 0);
        return plan_shape(shape, leaving_inputs(layout_.config, shape));
    }

  private:
    std::size_t activation_bytes(const BatchShape& shape) const {
        return Gpt2Step::device_bytes(layout_.config, shape, threads_);
    }
    [[nodiscard]] bool computes_in_host_memory() const {
        return budgets_.device_kind == cuda::MemoryKind::host;
    }
    /// Inputs can go nowhere from a `host` device without a drive.
    [[nodiscard]] bool inputs_can_leave() const {
        return nvme_ == offload::NvmeTier::present || !computes_in_host_memory();
    }
    [[nodiscard]] BatchShape with_fewest_places(BatchShape shape) const {
        shape.lost_inputs = inputs_can_leave() ? LostInputs::moved : LostInputs::made_again;
        const auto fewest = LayerInputPlaces::fewest(layout_.config.layers, shape.lost_inputs);
        if (fewest < layout_.config.layers)
            shape.input_places = static_cast<std::uint32_t>(fewest);
        return shape;
    }

    std::optional<TrainPlan> try_shape(const BatchShape& shape, std::size_t inputs_in_host) const {
        try {
            return plan_shape(shape, inputs_in_host);
        } catch (const offload::PlanRefused&) {
            return std::nullopt;
        }
    }

    /// With that many of the inputs in host memory as leave it room for what costs more a byte; of
    /// a `host` device none, since they were there before.
    std::optional<TrainPlan> try_places(BatchShape shape, std::uint32_t places) const {
        shape.input_places = places == layout_.config.layers ? 0 : places;
        const auto leaving = leaving_inputs(layout_.config, shape);
        if (nvme_ == offload::NvmeTier::absent)
            return try_shape(shape, leaving);
        auto best = try_shape(shape, 0);
        if (!best || computes_in_host_memory() || !dearer_than_inputs_resident(best->offload))
            return best;
        std::size_t fits = 0;
        std::size_t beyond = leaving + 1;
        while (fits + 1 < beyond) {
            const auto tried = (fits + beyond) / 2;
            auto plan = try_shape(shape, tried);
            if (plan && dearer_than_inputs_resident(plan->offload)) {
                fits = tried;
                best = std::move(plan);
            } else {
                beyond = tried;
            }
        }
        return best;
    }

    /// Of a `host` device: the most places with which `good` holds of the plan, or none.
    template <typename Good>
    std::optional<TrainPlan> most_places(const BatchShape& shape, const Good& good) const {
        std::optional<TrainPlan> best;
        std::uint32_t fits = with_fewest_places(shape).input_places;
        std::uint32_t beyond = layout_.config.layers;
        if (fits == 0)
            return best;
        best = try_places(shape, fits);
        if (!best || !good(*best))
            return std::nullopt;
        while (fits + 1 < beyond) {
            const auto tried = (fits + beyond) / 2;
            auto plan = try_places(shape, tried);
            if (plan && good(*plan)) {
                fits = tried;
                best = std::move(plan);
            } else {
                beyond = tried;
            }
        }
        return best;
    }

    std::optional<TrainPlan> try_leaving(const BatchShape& shape) const {
        if (!inputs_can_leave())
            return std::nullopt;
        if (computes_in_host_memory()) {
            if (auto plan = most_places(shape, has_weights_in_memory))
                return plan;
            return most_places(shape, [](const TrainPlan&) { return true; });
        }
        std::uint32_t fits = with_fewest_places(shape).input_places;
        std::uint32_t beyond = layout_.config.layers;
        if (fits == 0)
            return std::nullopt;
        while (fits + 1 < beyond) {
            const auto tried = (fits + beyond) / 2;
            (device_holds(shape, tried) ? fits : beyond) = tried;
        }
        return try_places(shape, fits);
    }

    /// Where nothing else has room for them: a layer's work for as few inputs as it takes.
    std::optional<TrainPlan> try_making_again(BatchShape shape) const {
        if (nvme_ == offload::NvmeTier::present)
            return std::nullopt;
        shape.lost_inputs = LostInputs::made_again;
        const auto layers = layout_.config.layers;
        std::uint32_t beyond = layers;
        auto fits = static_cast<std::uint32_t>(LayerInputPlaces::fewest(layers, shape.lost_inputs));
        if (fits == layers)
            return std::nullopt;
        shape.input_places = fits;
        auto best = try_shape(shape, 0);
        while (best && fits + 1 < beyond) {
            shape.input_places = (fits + beyond) / 2;
            if (auto plan = try_shape(shape, 0)) {
                fits = shape.input_places;
                best = std::move(plan);
            } else {
                beyond = shape.input_places;
            }
        }
        return best;
    }

    /// Whatever host memory says.
    bool device_holds(BatchShape shape, std::uint32_t places) const {
        shape.input_places = places;
        try {
            static_cast<void>(plan_shape(shape, 0));
        } catch (const offload::PlanRefused& refused) {
            return !is_of_device(refused);
        }
        return true;
    }
    static bool is_of_device(const offload::PlanRefused& refused) {
        return std::string_view(refused.what()).starts_with("device memory");
    }

    static bool has_weights_in_memory(const TrainPlan& plan) {
        return dearer_than_inputs_resident(plan.offload);
    }

    /// A byte of an input costs less on the drive than a byte of a weight. A `host` device has one
    /// memory for both.
    TrainPlan with_weights_in_memory(TrainPlan plan) const {
        if (!computes_in_host_memory() || nvme_ == offload::NvmeTier::absent ||
            has_weights_in_memory(plan))
            return plan;
        auto better = most_places(plan.shape, has_weights_in_memory);
        if (!better && with_fewest_places(plan.shape).input_places != 0)
            better = try_places(plan.shape, with_fewest_places(plan.shape).input_places);
        return better && nvme_bytes_per_step(*better) < nvme_bytes_per_step(plan)
                   ? *std::move(better)
                   : plan;
    }

    static std::uint64_t nvme_bytes_per_step(const TrainPlan& plan) {
        return plan.offload.nvme_read_bytes_per_step + plan.offload.nvme_written_bytes_per_step;
    }

    TrainPlan plan_shape(const BatchShape& shape, std::size_t inputs_in_host) const {
        const bool on_host = computes_in_host_memory();
        TrainPlan plan{.shape = shape, .activation_bytes = activation_bytes(shape), .offload = {}};
        plan.client_host_bytes =
            token_bytes(settings_) + trace_bytes(settings_) + (on_host ? plan.activation_bytes : 0);
        require_room("device memory", plan.activation_bytes, budgets_.device_bytes);
        require_room("host memory", plan.client_host_bytes, budgets_.host_bytes);
        const bool shared = budgets_.ranks > 1;
        const auto host_left = budgets_.host_bytes - plan.client_host_bytes;
        const auto device_left = budgets_.device_bytes - plan.activation_bytes;
        offload::PlanRequest request{
            .device_kind = shared ? cuda::MemoryKind::host : budgets_.device_kind,
            .host_bytes = host_left,
            .device_bytes = shared ? host_left : device_left,
            .nvme = nvme_,
            .drives = std::max<std::size_t>(nvme_folders(settings_.nvme).size(), 1),
            .planes = planes_of(settings_),
            .chunk_bytes = settings_.tuning.chunk_bytes,
            .windows = windows_of(settings_.tuning),
            .passes = needs_of(settings_).passes,
            .second_moments = second_moments_of(settings_),
            .timing = update_timing(settings_),
            .durability =
                settings_.durable == "off" ? offload::Durability::off : offload::Durability::on,
            .training_uses =
                gpt2_training_uses(layout_.config, inputs_made_again(layout_.config, shape)),
            .gradient_uses = gradient_uses(layout_),
            .activations = input_layout(layout_.config, shape, inputs_in_host),
            .activation_stores = budgets_.ranks};
        try {
            if (shared) {
                plan.group = offload::plan_group(layout_.order, layout_.units,
                                                 {.ranks = budgets_.ranks,
                                                  .device_bytes = device_left,
                                                  .training_uses = request.training_uses,
                                                  .gradient_uses = request.gradient_uses});
                request.training_uses = plan.group->fetched;
            }
            plan.offload = offload::make_plan(layout_.order, layout_.units, request);
        } catch (const offload::PlanRefused& refused) {
            // The user's budget holds both: name its whole, not the part that was left.
            // A group's units pass through host memory: once it is planned, that is what lacks.
            const bool device = is_of_device(refused) && !plan.group;
            const auto own = device ? plan.activation_bytes : plan.client_host_bytes;
            throw offload::PlanRefused(device ? "device memory" : "host memory",
                                       refused.needed_bytes + own, refused.available_bytes + own,
                                       advice());
        }
        return plan;
    }

    void require_room(const char* tier, std::size_t needed, std::size_t available) const {
        // Nothing would be left for the state either.
        if (needed >= available)
            throw offload::PlanRefused(
                tier, needed + 1, available,
                std::string("activations and data alone do not fit; raise the budget, take fewer "
                            "--batch sequences, more --micro-batches or a shorter --seq") +
                    (inputs_can_leave() ? ""
                                        : ", or give an --nvme folder so that layers' inputs can "
                                          "leave memory"));
    }

    std::string advice() const {
        return nvme_ == offload::NvmeTier::absent
                   ? "raise the budget (--host-mem, --device-mem), or give an --nvme folder so "
                     "that state and layers' inputs can live on a drive"
                   : "raise the budget (--host-mem, --device-mem), take a smaller model, fewer "
                     "--batch sequences or a shorter --seq";
    }

    const ModelLayout& layout_;
    const TrainSettings& settings_;
    std::size_t threads_;
    const MemoryBudgets& budgets_;
    offload::NvmeTier nvme_;
};

}  // namespace

ModelLayout make_layout(const TrainSettings& settings) {
    auto config = parse_gpt2(settings.model);
    config.vocabulary = settings.vocab;
    config.context = settings.context;
    config.feed_forward = settings.ffn;
    resolve(config);
    return {config, offload::ElementOrder(gpt2_tensors(config)), gpt2_units(config)};
}

TrainPlan plan_training(const ModelLayout& layout, const TrainSettings& settings,
                        std::size_t threads, const MemoryBudgets& budgets, offload::NvmeTier nvme) {
    return Planning(layout, settings, threads, budgets, nvme).run();
}

offload::NvmeTier nvme_tier(const TrainSettings& settings) noexcept {
    return settings.nvme.empty() ? offload::NvmeTier::absent : offload::NvmeTier::present;
}

offload::UpdateTiming update_timing(const TrainSettings& settings) {
    const auto clip = settings.clip.kind;
    const bool nothing_to_wait_for = (clip == ClipKind::off || clip == ClipKind::value) &&
                                     settings.nonfinite == "stop" &&
                                     needs_of(settings).reach == cpu_optim::Reach::element;
    return nothing_to_wait_for ? offload::UpdateTiming::as_completed
                               : offload::UpdateTiming::after_norm;
}

}  // namespace spillway::engine
