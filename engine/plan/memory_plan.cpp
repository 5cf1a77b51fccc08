// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/plan/memory_plan.h"

#include <algorithm>
#include <exception>
#include <optional>

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
            if (auto plan = try_shape(shape))
                return *std::move(plan);
        }
        for (const auto& shape : shapes) {
            if (auto plan = try_shape(shape))
                return *std::move(plan);
        }
        // The shape that needs least says what is missing.
        return plan_shape(*std::min_element(shapes.begin(), shapes.end(),
                                            [&](const BatchShape& a, const BatchShape& b) {
                                                return activation_bytes(a) < activation_bytes(b);
                                            }));
    }

  private:
    std::size_t activation_bytes(const BatchShape& shape) const {
        return Gpt2Step::device_bytes(layout_.config, shape, threads_);
    }

    std::optional<TrainPlan> try_shape(const BatchShape& shape) const {
        try {
            return plan_shape(shape);
        } catch (const offload::PlanRefused&) {
            return std::nullopt;
        }
    }

    TrainPlan plan_shape(const BatchShape& shape) const {
        const bool on_host = budgets_.device_kind == cuda::MemoryKind::host;
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
            .chunk_bytes = settings_.chunk_size,
            .passes = needs_of(settings_).passes,
            .timing = update_timing(settings_),
            .durability =
                settings_.durable == "off" ? offload::Durability::off : offload::Durability::on,
            .training_uses = gpt2_training_uses(layout_.config),
            .gradient_uses = gradient_uses(layout_)};
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
            const bool device =
                std::string_view(refused.what()).starts_with("device memory") && !plan.group;
            const auto own = device ? plan.activation_bytes : plan.client_host_bytes;
            throw offload::PlanRefused(device ? "device memory" : "host memory",
                                       refused.needed_bytes + own, refused.available_bytes + own,
                                       advice());
        }
        return plan;
    }

    static void require_room(const char* tier, std::size_t needed, std::size_t available) {
        // Nothing would be left for the state either.
        if (needed >= available)
            throw offload::PlanRefused(
                tier, needed + 1, available,
                "activations and data alone do not fit; raise the budget, take fewer --batch "
                "sequences, more --micro-batches or a shorter --seq");
    }

    std::string advice() const {
        return nvme_ == offload::NvmeTier::absent
                   ? "raise the budget (--host-mem, --device-mem), or give an --nvme folder so "
                     "that state can live on a drive"
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
