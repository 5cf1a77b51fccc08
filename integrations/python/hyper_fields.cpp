// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/python/hyper_fields.h"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "integrations/hyper_field_names.h"

namespace spillway::integrations {
namespace {

namespace nb = nanobind;
using namespace cpu_optim;

using Slot = std::variant<double*, std::optional<double>*, WeightDecay*, Amsgrad*, Objective*,
                          Nesterov*, Centred*>;
struct Field {
    std::string_view name;
    Slot slot;
};

template <class Kind>
std::vector<Field> fields_of(Kind& kind) {
    std::vector<Field> fields;
    for_each_field(kind, [&](std::string_view name, auto& slot) {
        fields.push_back({name, &slot});
    });
    return fields;
}
template <class... Kinds>
std::vector<Field> fields_of(std::variant<Kinds...>& hyper) {
    return std::visit([](auto& kind) { return fields_of(kind); }, hyper);
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

void assign(std::optional<double>* slot, nb::handle value, const std::string& what) {
    slot->reset();
    if (!value.is_none())
        assign(&slot->emplace(), value, what);
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
        fmt::format("\"{}\" is no optimizer: accepted are \"adam\" (AdamW and NAdam too), \"sgd\", "
                    "\"adagrad\", \"lion\", \"rmsprop\", \"lamb\", \"lars\" and \"adafactor\"",
                    optimizer));
}

template <class Hyper>
Hyper changed(Hyper hyper, nb::dict given, std::string_view what) {
    const auto optimizer = optimizer_name(hyper);
    const auto fields = fields_of(hyper);
    for (const auto& [key, value] : given)
        set_field(fields, optimizer, key, value, what);
    return hyper;
}

template <class Hyper>
offload::HyperGroups make_groups(const Hyper& defaults, nb::iterable groups) {
    std::vector<Hyper> result;
    for (const nb::handle group : groups) {
        const auto what = fmt::format("groups[{}]", result.size());
        if (!nb::isinstance<nb::dict>(group))
            throw nb::type_error(
                fmt::format("{} is {}, it must be a dict", what, nb::repr(group).c_str()).c_str());
        result.push_back(changed(defaults, nb::cast<nb::dict>(group), what));
    }
    return result;
}

}  // namespace

offload::HyperGroups with_fields(const offload::HyperGroups& groups, std::size_t group,
                                 nb::dict fields, std::string_view what) {
    return groups.visit([&](const auto& list) {
        return groups.with(group, changed(list.at(group), fields, what));
    });
}

offload::HyperGroups hyper_of_groups(std::string_view optimizer, nb::iterable groups) {
    if (optimizer == "lamb")
        return make_groups(LayerwiseHyperParameters(LambHyperParameters{}), groups);
    if (optimizer == "lars")
        return make_groups(LayerwiseHyperParameters(LarsHyperParameters{}), groups);
    if (optimizer == "adafactor")
        return make_groups(AdafactorHyperParameters{}, groups);
    return make_groups(default_hyper(optimizer), groups);
}

}  // namespace spillway::integrations
