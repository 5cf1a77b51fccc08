// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/optimizer_choice.h"

#include <stdexcept>

#include <fmt/format.h>

namespace spillway::engine {

const std::vector<std::string>& optimizer_names() {
    static const std::vector<std::string> names{"adamw", "adam",    "sgd",  "adagrad",
                                                "lion",  "rmsprop", "nadam"};
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
    throw std::invalid_argument(fmt::format("there is no optimizer '{}'; there are {}", name,
                                            fmt::join(optimizer_names(), ", ")));
}

offload::PlaneSet planes_of(const TrainSettings& settings) {
    return offload::planes_with_weights(
        cpu_optim::state_planes(hyper_parameters(settings, settings.lr, settings.weight_decay)),
        cpu_optim::parse_state_format(settings.state));
}

double rest_bytes_per_parameter(const TrainSettings& settings) {
    std::size_t tile_bytes = 0;
    for (const auto plane : planes_of(settings))
        tile_bytes += offload::tile_bytes(plane);
    return static_cast<double>(tile_bytes) / static_cast<double>(offload::tile_elements);
}

bool is_exact(const TrainSettings& settings) {
    return cpu_optim::is_exact(offload::state_format_of(planes_of(settings)));
}

}  // namespace spillway::engine
