// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/c/detail/translate.h"

#include <array>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include <fmt/format.h>

#include "integrations/c/detail/sized_struct.h"

namespace spillway::c_face {

namespace {

// A field that a later version adds must not lie in what was padding: the sizes of callers compiled
// before could not tell whether they have it.
static_assert(sizeof(spillway_parameter) == 48 && sizeof(spillway_options) == 96);
static_assert(sizeof(spillway_step_rule) == 32 && sizeof(spillway_step_report) == 40);
static_assert(sizeof(spillway_group) == 176 && sizeof(spillway_statistics) == 96);

/// The `value`-th of `known`.
template <class T, std::size_t count>
T choose(std::int32_t value, const std::array<T, count>& known, const char* name) {
    if (value < 0 || static_cast<std::size_t>(value) >= count)
        throw std::invalid_argument(
            fmt::format("{} is {}; known are 0 to {}", name, value, count - 1));
    return known[static_cast<std::size_t>(value)];
}

/// Element `index` of an array whose elements have their caller's size.
template <class T>
T read_element(const T* first, std::uint64_t index, std::uint64_t element_bytes, T defaults,
               const std::string& name) {
    const auto* raw = reinterpret_cast<const unsigned char*>(first) + index * element_bytes;
    const auto value = read_struct(reinterpret_cast<const T*>(raw), defaults, name.c_str());
    if (value.struct_bytes != element_bytes)
        throw std::invalid_argument(
            fmt::format("{}: struct_bytes is {}, but that of the first is {}; all must be equal",
                        name, value.struct_bytes, element_bytes));
    return value;
}

void check_array(const void* first, std::uint64_t count, const char* name, const char* count_name) {
    require(first, name);
    if (count == 0)
        throw std::invalid_argument(fmt::format("{} is 0; at least 1 is needed", count_name));
}

/// Of threads or requests; more than any machine serves is a mistake that the system would answer
/// less clearly.
std::size_t count_of(std::uint64_t value, const char* name) {
    constexpr std::uint64_t most = 4096;
    if (value == 0 || value > most)
        throw std::invalid_argument(
            fmt::format("{} is {}; 1 to {} are possible", name, value, most));
    return value;
}

std::string text_or_empty(const char* text) {
    return text == nullptr ? std::string{} : std::string{text};
}

offload::Parameter parameter_of(const spillway_parameter& from, const std::string& name) {
    require(from.name, (name + ".name").c_str());
    offload::Parameter parameter;
    parameter.name = from.name;
    if (from.dimensions != 0) {
        if (from.dimensions > 64)
            throw std::invalid_argument(fmt::format("{} ('{}').dimensions is {}; at most 64", name,
                                                    from.name, from.dimensions));
        require(from.shape, (name + ".shape").c_str());
        parameter.shape.assign(from.shape, from.shape + from.dimensions);
    }
    constexpr std::array types{offload::ParameterType::fp32, offload::ParameterType::bf16};
    parameter.type = choose(from.type, types, (name + ".type").c_str());
    parameter.group = from.group;
    parameter.data = from.data;
    return parameter;
}

}  // namespace

spillway_parameter default_parameter() noexcept {
    spillway_parameter parameter{};
    parameter.struct_bytes = sizeof parameter;
    return parameter;
}

spillway_options default_options() noexcept {
    const offload::TensorOptimizerOptions from;
    spillway_options options{};
    options.struct_bytes = sizeof options;
    options.host_bytes = from.host_bytes;
    options.chunk_bytes = from.chunk_bytes;
    options.threads = from.threads;
    options.io_depth = from.io.every_drive.depth;
    return options;
}

spillway_step_rule default_step_rule() noexcept {
    spillway_step_rule rule{};
    rule.struct_bytes = sizeof rule;
    rule.gradient_scale = offload::StepRule{}.gradient_scale;
    return rule;
}

std::vector<offload::Parameter> parameters_of(const spillway_parameter* parameters,
                                              std::uint64_t count) {
    check_array(parameters, count, "parameters", "parameter_count");
    std::vector<offload::Parameter> list;
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto name = fmt::format("parameters[{}]", i);
        list.push_back(parameter_of(
            read_element(parameters, i, parameters->struct_bytes, default_parameter(), name),
            name));
    }
    return list;
}

namespace {

/// A list of the family that `Hyper` is of.
template <class Hyper>
offload::HyperGroups one_family(const std::vector<AnyHyper>& all) {
    std::vector<Hyper> list;
    for (const auto& hyper : all) {
        const auto* const found = std::get_if<Hyper>(&hyper);
        if (found == nullptr)
            throw std::invalid_argument(fmt::format(
                "groups[{}] is of another kind of optimizer than groups[0]: one serves all groups",
                list.size()));
        list.push_back(*found);
    }
    return list;
}

}  // namespace

offload::HyperGroups groups_of(const spillway_group* groups, std::uint64_t count) {
    check_array(groups, count, "groups", "group_count");
    std::vector<AnyHyper> all;
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto name = fmt::format("groups[{}]", i);
        const auto group = read_element(groups, i, groups->struct_bytes, spillway_group{}, name);
        all.push_back(group_of(&group, name.c_str()));
    }
    return std::visit(
        [&](const auto& first) { return one_family<std::decay_t<decltype(first)>>(all); },
        all.front());
}

/// Folders by commas, as everywhere.
void set_drives(offload::TensorOptimizerOptions& options, std::string_view nvme) {
    auto comma = nvme.find(',');
    options.nvme = nvme.substr(0, comma);
    while (comma != std::string_view::npos) {
        nvme.remove_prefix(comma + 1);
        comma = nvme.find(',');
        options.more_nvme.emplace_back(nvme.substr(0, comma));
    }
}

std::optional<offload::AverageRule> average_of(const char* text) {
    try {
        return offload::parse_average(text);
    } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(fmt::format("options.average: {}", error.what()));
    }
}

offload::TensorOptimizerOptions options_of(const spillway_options* options) {
    const auto from = read_struct(options, default_options(), "options");
    offload::TensorOptimizerOptions to;
    to.host_bytes = from.host_bytes;
    set_drives(to, text_or_empty(from.nvme));
    to.out = text_or_empty(from.out);
    to.chunk_bytes = from.chunk_bytes;
    to.threads = count_of(from.threads, "options.threads");
    const std::array isas{cpu_optim::best_isa(), cpu_optim::Isa::scalar, cpu_optim::Isa::avx2,
                          cpu_optim::Isa::avx512};
    to.isa = choose(from.isa, isas, "options.isa");
    constexpr std::array backends{nvme::BackendKind::automatic, nvme::BackendKind::io_uring,
                                  nvme::BackendKind::threads, nvme::BackendKind::libaio};
    to.io.every_drive.backend = choose(from.io_backend, backends, "options.io_backend");
    to.io.every_drive.depth = count_of(from.io_depth, "options.io_depth");
    to.state = choose(from.state, cpu_optim::every_state_format, "options.state");
    if (from.reserved != 0)
        throw std::invalid_argument(
            fmt::format("options.reserved is {} and must be 0", from.reserved));
    to.rounding_seed = from.rounding_seed;
    if (from.average != nullptr)
        to.average = average_of(from.average);
    if (from.client_settings != nullptr)
        to.client_settings = from.client_settings;
    return to;
}

offload::StepRule step_rule_of(const spillway_step_rule* rule) {
    const auto from = read_struct(rule, default_step_rule(), "rule");
    offload::StepRule to;
    if (!std::isfinite(from.gradient_scale))
        throw std::invalid_argument(
            fmt::format("rule.gradient_scale is {} and must be finite", from.gradient_scale));
    to.gradient_scale = from.gradient_scale;
    if (flag(from.clip, "rule.clip"))
        to.max_norm = from.max_norm;
    else if (from.max_norm != 0)
        throw std::invalid_argument(
            fmt::format("rule.max_norm is {} but rule.clip is 0; set clip to 1, or max_norm to 0",
                        from.max_norm));
    constexpr std::array rules{offload::NonfiniteRule::propagate, offload::NonfiniteRule::skip,
                               offload::NonfiniteRule::stop};
    to.nonfinite = choose(from.nonfinite, rules, "rule.nonfinite");
    return to;
}

cpu_optim::GradientType gradient_type_of(spillway_gradient_type type) {
    constexpr std::array types{cpu_optim::GradientType::fp32, cpu_optim::GradientType::bf16,
                               cpu_optim::GradientType::fp16};
    return choose(type, types, "type");
}

engine::TensorDtype export_dtype_of(spillway_export_type type) {
    constexpr std::array types{engine::TensorDtype::f32, engine::TensorDtype::bf16};
    return choose(type, types, "type");
}

spillway_statistics statistics_of(const offload::TensorOptimizerStatistics& from) {
    spillway_statistics to{};
    to.nvme_read_bytes = from.nvme_read_bytes;
    to.nvme_written_bytes = from.nvme_written_bytes;
    to.commit_bytes = from.commit_bytes;
    to.host_bytes = from.host_bytes;
    to.state_bytes = from.state_bytes;
    to.resident_state_bytes = from.resident_state_bytes;
    to.update_busy_s = from.update_busy_s;
    to.update_wall_s = from.update_wall_s;
    to.stall_nvme_read_s = from.stall_nvme_read_s;
    to.stall_nvme_write_s = from.stall_nvme_write_s;
    to.stall_gradient_s = from.stall_gradient_s;
    return to;
}

}  // namespace spillway::c_face
