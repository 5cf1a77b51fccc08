// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/python/hyper_fields.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::integrations {
namespace {

namespace nb = nanobind;
using namespace cpu_optim;

using Slot = std::variant<double*, WeightDecay*, Amsgrad*, Objective*, Nesterov*, Centred*>;
struct Field {
    std::string_view name;
    Slot slot;
};

std::vector<Field> fields_of(AdamHyperParameters& h) {
    return {{"learning_rate", &h.learning_rate},
            {"beta1", &h.beta1},
            {"beta2", &h.beta2},
            {"epsilon", &h.epsilon},
            {"weight_decay", &h.weight_decay},
            {"decay", &h.decay},
            {"amsgrad", &h.amsgrad},
            {"maximise", &h.objective}};
}

std::vector<Field> fields_of(SgdHyperParameters& h) {
    return {{"learning_rate", &h.learning_rate}, {"momentum", &h.momentum},
            {"dampening", &h.dampening},         {"weight_decay", &h.weight_decay},
            {"nesterov", &h.nesterov},           {"maximise", &h.objective}};
}

std::vector<Field> fields_of(AdagradHyperParameters& h) {
    return {{"learning_rate", &h.learning_rate},
            {"learning_rate_decay", &h.learning_rate_decay},
            {"weight_decay", &h.weight_decay},
            {"initial_accumulator_value", &h.initial_accumulator_value},
            {"epsilon", &h.epsilon},
            {"maximise", &h.objective}};
}

std::vector<Field> fields_of(LionHyperParameters& h) {
    return {{"learning_rate", &h.learning_rate},
            {"beta1", &h.beta1},
            {"beta2", &h.beta2},
            {"weight_decay", &h.weight_decay},
            {"maximise", &h.objective}};
}

std::vector<Field> fields_of(RmspropHyperParameters& h) {
    return {{"learning_rate", &h.learning_rate}, {"alpha", &h.alpha},       {"epsilon", &h.epsilon},
            {"weight_decay", &h.weight_decay},   {"momentum", &h.momentum}, {"centred", &h.centred},
            {"maximise", &h.objective}};
}

std::string shown(nb::handle value) {
    return nb::repr(value).c_str();
}

[[noreturn]] void refuse_type(const std::string& what, nb::handle value, std::string_view needed) {
    throw nb::type_error(
        fmt::format("{} is {}, it must be {}", what, shown(value), needed).c_str());
}

void assign(double* slot, nb::handle value, const std::string& what) {
    // A one-element tensor is a number too, a flag is not.
    const double number = PyBool_Check(value.ptr()) ? -1.0 : PyFloat_AsDouble(value.ptr());
    if (PyErr_Occurred() || PyBool_Check(value.ptr())) {
        PyErr_Clear();
        refuse_type(what, value, "a number");
    }
    *slot = number;
}

void assign(WeightDecay* slot, nb::handle value, const std::string& what) {
    std::string name;
    if (PyUnicode_Check(value.ptr()))
        name = nb::cast<nb::str>(value).c_str();
    if (name != "decoupled" && name != "l2")
        throw std::invalid_argument(
            fmt::format("{} is {}, it must be \"decoupled\" or \"l2\"", what, shown(value)));
    *slot = name == "l2" ? WeightDecay::l2 : WeightDecay::decoupled;
}

/// Every other choice is off (0) or on (1).
template <typename Choice>
void assign(Choice* slot, nb::handle value, const std::string& what) {
    static_assert(std::is_enum_v<Choice>);
    if (!PyBool_Check(value.ptr()))
        refuse_type(what, value, "True or False");
    *slot = static_cast<Choice>(value.ptr() == Py_True ? 1 : 0);
}

void set_field(const std::vector<Field>& fields, std::string_view optimizer, nb::handle key,
               nb::handle value, std::string_view what) {
    const std::string name =
        PyUnicode_Check(key.ptr()) ? nb::cast<nb::str>(key).c_str() : shown(key);
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const Field& known) { return known.name == name; });
    if (field == fields.end()) {
        std::vector<std::string_view> names;
        for (const Field& known : fields)
            names.push_back(known.name);
        throw std::invalid_argument(fmt::format("{}: {} has no \"{}\"; it has {}", what, optimizer,
                                                name, fmt::join(names, ", ")));
    }
    std::visit([&](auto* slot) { assign(slot, value, fmt::format("{}: {}", what, name)); },
               field->slot);
}

}  // namespace

HyperParameters default_hyper(std::string_view optimizer) {
    if (optimizer == "adam")
        return AdamHyperParameters{};
    if (optimizer == "sgd")
        return SgdHyperParameters{};
    if (optimizer == "adagrad")
        return AdagradHyperParameters{};
    if (optimizer == "lion")
        return LionHyperParameters{};
    if (optimizer == "rmsprop")
        return RmspropHyperParameters{};
    throw std::invalid_argument(
        fmt::format("\"{}\" is no optimizer: accepted are \"adam\" (AdamW too), \"sgd\", "
                    "\"adagrad\", \"lion\" and \"rmsprop\"",
                    optimizer));
}

HyperParameters with_fields(HyperParameters hyper, nb::dict given, std::string_view what) {
    const auto optimizer = optimizer_name(hyper);
    const auto fields = std::visit([](auto& kind) { return fields_of(kind); }, hyper);
    for (const auto& [key, value] : given)
        set_field(fields, optimizer, key, value, what);
    return hyper;
}

}  // namespace spillway::integrations
