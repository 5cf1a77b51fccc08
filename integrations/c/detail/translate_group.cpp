// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "integrations/c/detail/sized_struct.h"
#include "integrations/c/detail/translate.h"

namespace spillway::c_face {

namespace {

// Each kind lists its fields once, `each(NAME, C FIELD, C++ FIELD)`, for both directions. C++
// fields are doubles or two-valued enums, whose second value is the flag's 1.

template <class Group, class Hyper, class Each>
void adam_fields(Group& group, Hyper& hyper, Each&& each) {
    each("learning_rate", group.learning_rate, hyper.learning_rate);
    each("beta1", group.beta1, hyper.beta1);
    each("beta2", group.beta2, hyper.beta2);
    each("epsilon", group.epsilon, hyper.epsilon);
    each("weight_decay", group.weight_decay, hyper.weight_decay);
    each("amsgrad", group.amsgrad, hyper.amsgrad);
    each("maximise", group.maximise, hyper.objective);
}

template <class Group, class Hyper, class Each>
void sgd_fields(Group& group, Hyper& hyper, Each&& each) {
    each("learning_rate", group.learning_rate, hyper.learning_rate);
    each("momentum", group.momentum, hyper.momentum);
    each("dampening", group.dampening, hyper.dampening);
    each("weight_decay", group.weight_decay, hyper.weight_decay);
    each("nesterov", group.nesterov, hyper.nesterov);
    each("maximise", group.maximise, hyper.objective);
}

template <class Group, class Hyper, class Each>
void adagrad_fields(Group& group, Hyper& hyper, Each&& each) {
    each("learning_rate", group.learning_rate, hyper.learning_rate);
    each("learning_rate_decay", group.learning_rate_decay, hyper.learning_rate_decay);
    each("weight_decay", group.weight_decay, hyper.weight_decay);
    each("initial_accumulator_value", group.initial_accumulator_value,
         hyper.initial_accumulator_value);
    each("epsilon", group.epsilon, hyper.epsilon);
    each("maximise", group.maximise, hyper.objective);
}

template <class Group, class Hyper, class Each>
void lion_fields(Group& group, Hyper& hyper, Each&& each) {
    each("learning_rate", group.learning_rate, hyper.learning_rate);
    each("beta1", group.beta1, hyper.beta1);
    each("beta2", group.beta2, hyper.beta2);
    each("weight_decay", group.weight_decay, hyper.weight_decay);
    each("maximise", group.maximise, hyper.objective);
}

template <class Group, class Hyper, class Each>
void rmsprop_fields(Group& group, Hyper& hyper, Each&& each) {
    each("learning_rate", group.learning_rate, hyper.learning_rate);
    each("alpha", group.alpha, hyper.alpha);
    each("epsilon", group.epsilon, hyper.epsilon);
    each("weight_decay", group.weight_decay, hyper.weight_decay);
    each("momentum", group.momentum, hyper.momentum);
    each("centred", group.centred, hyper.centred);
    each("maximise", group.maximise, hyper.objective);
}

template <class Group, class Each>
void fields_of(Group& group, cpu_optim::HyperParameters& hyper, Each&& each) {
    using namespace cpu_optim;
    if (auto* adam = std::get_if<AdamHyperParameters>(&hyper))
        adam_fields(group, *adam, each);
    else if (auto* sgd = std::get_if<SgdHyperParameters>(&hyper))
        sgd_fields(group, *sgd, each);
    else if (auto* adagrad = std::get_if<AdagradHyperParameters>(&hyper))
        adagrad_fields(group, *adagrad, each);
    else if (auto* lion = std::get_if<LionHyperParameters>(&hyper))
        lion_fields(group, *lion, each);
    else
        rmsprop_fields(group, std::get<RmspropHyperParameters>(hyper), each);
}

cpu_optim::HyperParameters defaults_of(spillway_optimizer_kind kind, const char* name) {
    cpu_optim::AdamHyperParameters adam;
    adam.decay = cpu_optim::WeightDecay::l2;
    adam.weight_decay = 0;
    switch (kind) {
        case SPILLWAY_ADAMW:
            return cpu_optim::AdamHyperParameters{};
        case SPILLWAY_ADAM:
            return adam;
        case SPILLWAY_SGD:
            return cpu_optim::SgdHyperParameters{};
        case SPILLWAY_ADAGRAD:
            return cpu_optim::AdagradHyperParameters{};
        case SPILLWAY_LION:
            return cpu_optim::LionHyperParameters{};
        case SPILLWAY_RMSPROP:
            return cpu_optim::RmspropHyperParameters{};
        default:
            throw std::invalid_argument(
                fmt::format("{} is {}; known are 0 to {}", name, kind, SPILLWAY_RMSPROP));
    }
}

struct ToC {
    void operator()(const char*, double& field, double value) const { field = value; }
    template <class Choice>
    void operator()(const char*, std::int32_t& field, Choice value) const {
        field = static_cast<std::int32_t>(value);
    }
};

/// Takes a field over and leaves 0 behind, so that what is left is what the kind does not have.
struct TakeFromC {
    const char* name;

    void operator()(const char*, double& field, double& value) const {
        value = field;
        field = 0;
    }
    template <class Choice>
    void operator()(const char* field_name, std::int32_t& field, Choice& value) const {
        value = static_cast<Choice>(flag(field, fmt::format("{}.{}", name, field_name).c_str()));
        field = 0;
    }
};

void refuse_what_is_left(const spillway_group& group, const cpu_optim::HyperParameters& hyper,
                         const char* name) {
    const std::array<std::pair<const char*, double>, 13> fields{{
        {"amsgrad", group.amsgrad},
        {"nesterov", group.nesterov},
        {"centred", group.centred},
        {"reserved", group.reserved},
        {"beta1", group.beta1},
        {"beta2", group.beta2},
        {"epsilon", group.epsilon},
        {"momentum", group.momentum},
        {"dampening", group.dampening},
        {"learning_rate_decay", group.learning_rate_decay},
        {"initial_accumulator_value", group.initial_accumulator_value},
        {"alpha", group.alpha},
        {"maximise", group.maximise},
    }};
    for (const auto& [field, value] : fields)
        if (value != 0)
            throw std::invalid_argument(
                fmt::format("{}.{} is {}, which {} does not have; it must be 0 (start from "
                            "spillway_group_init)",
                            name, field, value, cpu_optim::optimizer_name(hyper)));
}

}  // namespace

spillway_group default_group(spillway_optimizer_kind kind) {
    auto hyper = defaults_of(kind, "kind");
    spillway_group group{};
    group.struct_bytes = sizeof group;
    group.optimizer = kind;
    fields_of(group, hyper, ToC{});
    return group;
}

cpu_optim::HyperParameters group_of(const spillway_group* group, const char* name) {
    auto from = read_struct(group, spillway_group{}, name);
    auto hyper = defaults_of(from.optimizer, fmt::format("{}.optimizer", name).c_str());
    fields_of(from, hyper, TakeFromC{name});
    refuse_what_is_left(from, hyper, name);
    return hyper;
}

}  // namespace spillway::c_face
