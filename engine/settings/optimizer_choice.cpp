// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/optimizer_choice.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/settings/average_choice.h"

namespace spillway::engine {

namespace {

[[noreturn]] void refuse_name(const std::string& name, const std::vector<std::string>& names) {
    throw std::invalid_argument(
        fmt::format("there is no optimizer '{}'; there are {}", name, fmt::join(names, ", ")));
}

constexpr const char* adafactor = "adafactor";

bool is_layerwise(const std::string& name) {
    return name == "lamb" || name == "lars";
}

cpu_optim::LayerwiseHyperParameters layerwise_hyper_parameters(const TrainSettings& settings,
                                                               double learning_rate,
                                                               double weight_decay) {
    if (settings.optimizer == "lamb")
        return cpu_optim::LambHyperParameters{.learning_rate = learning_rate,
                                              .beta1 = settings.beta1,
                                              .beta2 = settings.beta2,
                                              .epsilon = settings.epsilon,
                                              .weight_decay = weight_decay};
    return cpu_optim::LarsHyperParameters{.learning_rate = learning_rate,
                                          .momentum = settings.momentum,
                                          .weight_decay = weight_decay,
                                          .trust_coefficient = settings.trust_coefficient};
}

cpu_optim::AdafactorHyperParameters adafactor_hyper_parameters(const TrainSettings& settings,
                                                               double learning_rate,
                                                               double weight_decay) {
    return {.learning_rate = learning_rate,
            .beta2_decay = settings.beta2_decay,
            .clip_threshold = settings.update_clip,
            .weight_decay = weight_decay};
}

template <class Predicate>
std::vector<std::string> names_with(const Predicate& wanted) {
    std::vector<std::string> found;
    std::ranges::copy_if(optimizer_names(), std::back_inserter(found), wanted);
    return found;
}

}  // namespace

const std::vector<std::string>& optimizer_names() {
    static const std::vector<std::string> names{"adamw",   "adam",  "sgd",  "adagrad", "lion",
                                                "rmsprop", "nadam", "lamb", "lars",    adafactor};
    return names;
}

const std::vector<std::string>& elementwise_optimizer_names() {
    static const auto names =
        names_with([](const auto& name) { return !is_layerwise(name) && name != adafactor; });
    return names;
}

const std::vector<std::string>& measured_optimizer_names() {
    static const auto names = names_with([](const auto& name) { return name != adafactor; });
    return names;
}

cpu_optim::HyperParameters hyper_parameters(const TrainSettings& settings, double learning_rate,
                                            double weight_decay) {
    const auto& name = settings.optimizer;
    if (name == "adamw" || name == "adam" || name == "nadam")
        return cpu_optim::AdamHyperParameters{
            .learning_rate = learning_rate,
            .beta1 = settings.beta1,
            .beta2 = settings.beta2,
            .epsilon = settings.epsilon,
            .weight_decay = weight_decay,
            .decay =
                name == "adamw" ? cpu_optim::WeightDecay::decoupled : cpu_optim::WeightDecay::l2,
            .nesterov = name == "nadam" ? cpu_optim::Nesterov::on : cpu_optim::Nesterov::off};
    if (name == "sgd")
        return cpu_optim::SgdHyperParameters{.learning_rate = learning_rate,
                                             .momentum = settings.momentum,
                                             .weight_decay = weight_decay};
    if (name == "adagrad")
        return cpu_optim::AdagradHyperParameters{.learning_rate = learning_rate,
                                                 .weight_decay = weight_decay,
                                                 .epsilon = settings.epsilon};
    if (name == "lion")
        return cpu_optim::LionHyperParameters{.learning_rate = learning_rate,
                                              .beta1 = settings.beta1,
                                              .beta2 = settings.beta2,
                                              .weight_decay = weight_decay};
    if (name == "rmsprop")
        return cpu_optim::RmspropHyperParameters{.learning_rate = learning_rate,
                                                 .alpha = settings.beta2,
                                                 .epsilon = settings.epsilon,
                                                 .weight_decay = weight_decay,
                                                 .momentum = settings.momentum};
    refuse_name(name, elementwise_optimizer_names());
}

offload::HyperGroups hyper_groups(const TrainSettings& settings, double learning_rate) {
    const auto made = [&](const auto& make) -> offload::HyperGroups {
        return {make(settings, learning_rate, settings.weight_decay),
                make(settings, learning_rate, 0.0)};
    };
    if (is_layerwise(settings.optimizer))
        return made(layerwise_hyper_parameters);
    if (settings.optimizer == adafactor)
        return made(adafactor_hyper_parameters);
    if (std::ranges::find(optimizer_names(), settings.optimizer) == optimizer_names().end())
        refuse_name(settings.optimizer, optimizer_names());
    return made(hyper_parameters);
}

offload::HyperGroups one_hyper_group(const TrainSettings& settings, double learning_rate) {
    return hyper_groups(settings, learning_rate).visit([](auto groups) -> offload::HyperGroups {
        groups.resize(1);
        return groups;
    });
}

cpu_optim::OptimizerNeeds needs_of(const TrainSettings& settings) {
    return hyper_groups(settings, settings.lr).needs();
}

offload::SecondMoments second_moments_of(const TrainSettings& settings) {
    return hyper_groups(settings, settings.lr).second_moments();
}

offload::PlaneSet planes_of(const TrainSettings& settings) {
    auto planes = offload::planes_with_weights(needs_of(settings).state_planes,
                                               cpu_optim::parse_state_format(settings.state));
    if (average_rule(settings))
        planes.insert(offload::Plane::average);
    return planes;
}

double rest_bytes_per_parameter(const TrainSettings& settings) {
    std::size_t tile_bytes = 0;
    for (const auto plane : planes_of(settings))
        tile_bytes += offload::tile_bytes(plane);
    return static_cast<double>(tile_bytes) / static_cast<double>(offload::tile_elements);
}

bool is_exact(const TrainSettings& settings) {
    return cpu_optim::is_exact(offload::state_format_of(planes_of(settings))) &&
           settings.clip.kind != ClipKind::layer;
}

}  // namespace spillway::engine
