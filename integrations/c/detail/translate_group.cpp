// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "integrations/c/detail/sized_struct.h"
#include "integrations/c/detail/translate.h"
#include "integrations/hyper_field_names.h"

namespace spillway::c_face {

namespace {

/// The fields of a group that kinds of optimizers have or have not, by their common names.
struct GroupField {
    std::string_view name;
    std::variant<double spillway_group::*, std::int32_t spillway_group::*> member;
};

constexpr std::array<GroupField, 22> group_fields{{
    {"learning_rate", &spillway_group::learning_rate},
    {"weight_decay", &spillway_group::weight_decay},
    {"amsgrad", &spillway_group::amsgrad},
    {"nesterov", &spillway_group::nesterov},
    {"centred", &spillway_group::centred},
    {"beta1", &spillway_group::beta1},
    {"beta2", &spillway_group::beta2},
    {"epsilon", &spillway_group::epsilon},
    {"momentum", &spillway_group::momentum},
    {"dampening", &spillway_group::dampening},
    {"learning_rate_decay", &spillway_group::learning_rate_decay},
    {"initial_accumulator_value", &spillway_group::initial_accumulator_value},
    {"alpha", &spillway_group::alpha},
    {"maximise", &spillway_group::maximise},
    {"momentum_decay", &spillway_group::momentum_decay},
    {"trust_coefficient", &spillway_group::trust_coefficient},
    {"least_weight_norm", &spillway_group::least_weight_norm},
    {"most_weight_norm", &spillway_group::most_weight_norm},
    {"beta2_decay", &spillway_group::beta2_decay},
    {"epsilon1", &spillway_group::epsilon1},
    {"epsilon2", &spillway_group::epsilon2},
    {"clip_threshold", &spillway_group::clip_threshold},
}};

/// `Member`: double or std::int32_t, as the field of that name is.
template <class Member>
Member& field(spillway_group& group, std::string_view name) {
    const auto found = std::ranges::find(group_fields, name, &GroupField::name);
    return group.*std::get<Member spillway_group::*>(found->member);
}

/// Takes a field over and leaves 0 behind, so that what is left is what the kind does not have.
template <class Member>
Member take(spillway_group& group, std::string_view name) {
    return std::exchange(field<Member>(group, name), Member{0});
}

struct ToC {
    spillway_group& group;

    void operator()(std::string_view name, double value) const {
        field<double>(group, name) = value;
    }
    /// As a number, what it is without one.
    void operator()(std::string_view name, const std::optional<double>& value) const {
        field<double>(group, name) = value.value_or(cpu_optim::adafactor_default_epsilon1);
    }
    template <class Choice>
    void operator()(std::string_view name, Choice value) const {
        field<std::int32_t>(group, name) = static_cast<std::int32_t>(value);
    }
    /// The kind of the group says it.
    void operator()(std::string_view, cpu_optim::WeightDecay) const {}
};

struct FromC {
    spillway_group& group;
    const char* what;

    void operator()(std::string_view name, double& value) const {
        value = take<double>(group, name);
    }
    void operator()(std::string_view name, std::optional<double>& value) const {
        value = take<double>(group, name);
    }
    template <class Choice>
    void operator()(std::string_view name, Choice& value) const {
        const auto given = take<std::int32_t>(group, name);
        value = static_cast<Choice>(flag(given, fmt::format("{}.{}", what, name).c_str()));
    }
    void operator()(std::string_view, cpu_optim::WeightDecay&) const {}
};

template <class Each>
void for_each_field_of(AnyHyper& hyper, const Each& each) {
    const auto each_of = [&](auto& kind) { integrations::for_each_field(kind, each); };
    std::visit(
        [&](auto& family) {
            if constexpr (std::is_same_v<decltype(family), cpu_optim::AdafactorHyperParameters&>)
                each_of(family);
            else
                std::visit(each_of, family);
        },
        hyper);
}

std::string_view name_of(const AnyHyper& hyper) {
    return std::visit([](const auto& family) { return cpu_optim::optimizer_name(family); }, hyper);
}

AnyHyper defaults_of(spillway_optimizer_kind kind, const char* name) {
    using Elementwise = cpu_optim::HyperParameters;
    using Layerwise = cpu_optim::LayerwiseHyperParameters;
    cpu_optim::AdamHyperParameters adam;
    adam.decay = cpu_optim::WeightDecay::l2;
    adam.weight_decay = 0;
    switch (kind) {
        case SPILLWAY_ADAMW:
            return Elementwise(cpu_optim::AdamHyperParameters{});
        case SPILLWAY_ADAM:
            return Elementwise(adam);
        case SPILLWAY_SGD:
            return Elementwise(cpu_optim::SgdHyperParameters{});
        case SPILLWAY_ADAGRAD:
            return Elementwise(cpu_optim::AdagradHyperParameters{});
        case SPILLWAY_LION:
            return Elementwise(cpu_optim::LionHyperParameters{});
        case SPILLWAY_RMSPROP:
            return Elementwise(cpu_optim::RmspropHyperParameters{});
        case SPILLWAY_LAMB:
            return Layerwise(cpu_optim::LambHyperParameters{});
        case SPILLWAY_LARS:
            return Layerwise(cpu_optim::LarsHyperParameters{});
        case SPILLWAY_ADAFACTOR:
            return cpu_optim::AdafactorHyperParameters{};
        default:
            throw std::invalid_argument(
                fmt::format("{} is {}; known are 0 to {}", name, kind, SPILLWAY_ADAFACTOR));
    }
}

void refuse_what_is_left(const spillway_group& group, const AnyHyper& hyper, const char* what) {
    const auto refuse = [&](std::string_view name, double value) {
        if (value != 0)
            throw std::invalid_argument(
                fmt::format("{}.{} is {}, which {} does not have; it must be 0 (start from "
                            "spillway_group_init)",
                            what, name, value, name_of(hyper)));
    };
    refuse("reserved", group.reserved);
    for (const auto& known : group_fields)
        std::visit([&](auto member) { refuse(known.name, group.*member); }, known.member);
}

}  // namespace

spillway_group default_group(spillway_optimizer_kind kind) {
    auto hyper = defaults_of(kind, "kind");
    spillway_group group{};
    group.struct_bytes = sizeof group;
    group.optimizer = kind;
    for_each_field_of(hyper, ToC{group});
    return group;
}

AnyHyper group_of(const spillway_group* group, const char* name) {
    const auto kind = read_struct(group, spillway_group{}, name).optimizer;
    auto hyper = defaults_of(kind, fmt::format("{}.optimizer", name).c_str());
    // What the caller's version has no field for keeps the kind's default.
    auto from = read_struct(group, default_group(kind), name);
    for_each_field_of(hyper, FromC{from, name});
    refuse_what_is_left(from, hyper, name);
    return hyper;
}

}  // namespace spillway::c_face
