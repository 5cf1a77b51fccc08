// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <cstddef>
#include <span>

#include "integrations/python/bound_optimizer.h"

namespace spillway::integrations {
namespace {

namespace nb = nanobind;
using offload::TensorId;

std::span<float> floats(const HostArray& array) {
    return {static_cast<float*>(array.data), array.elements};
}

std::span<std::int16_t> int16s(const HostArray& array) {
    return {static_cast<std::int16_t*>(array.data), array.elements};
}

/// Elements that are copied between two looks for signals: less than a tenth of a second from any
/// drive that is worth having.
constexpr std::size_t piece_elements = std::size_t{1} << 23;

/// call(first, values) piece by piece. What does not lie within the tensor's `elements` goes to one
/// call, which refuses it before anything is copied.
template <typename Element, typename Call>
void in_pieces(std::uint64_t elements, std::uint64_t first, std::span<Element> values,
               const Call& call) {
    while (values.size() > piece_elements && values.size() <= elements &&
           first <= elements - values.size()) {
        call(first, values.first(piece_elements));
        check_signals();
        first += piece_elements;
        values = values.subspan(piece_elements);
    }
    call(first, values);
}

HostArray plane_array(nb::handle array, ArrayAccess access, ElementType type) {
    return host_array(array, access, {type}, access == ArrayAccess::write ? "out" : "values");
}

}  // namespace

std::uint64_t BoundOptimizer::steps(TensorId tensor) {
    check_tensor(tensor);
    return when_idle([&](auto& optimizer) { return optimizer.steps(tensor); });
}

void BoundOptimizer::set_steps(TensorId tensor, std::uint64_t steps) {
    check_tensor(tensor);
    when_idle([&](auto& optimizer) { optimizer.set_steps(tensor, steps); });
}

/// call(optimizer, first, values) piece by piece.
template <typename Call>
void BoundOptimizer::move_floats(TensorId tensor, std::uint64_t first, nb::handle values,
                                 ArrayAccess access, const Call& call) {
    check_tensor(tensor);
    const auto array = plane_array(values, access, ElementType::fp32);
    in_pieces(parameters_[tensor].elements, first, floats(array), [&](std::uint64_t at, auto part) {
        when_idle([&](auto& optimizer) { call(optimizer, at, part); });
    });
}

void BoundOptimizer::read_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                                nb::handle out) {
    move_floats(tensor, first, out, ArrayAccess::write,
                [&](auto& optimizer, std::uint64_t at, auto part) {
                    optimizer.read_state(tensor, plane, at, part);
                });
}

void BoundOptimizer::write_state(TensorId tensor, std::size_t plane, std::uint64_t first,
                                 nb::handle values) {
    move_floats(tensor, first, values, ArrayAccess::read,
                [&](auto& optimizer, std::uint64_t at, auto part) {
                    optimizer.write_state(tensor, plane, at, part);
                });
}

std::span<float> BoundOptimizer::state_view(TensorId tensor, std::size_t plane) {
    check_tensor(tensor);
    return when_idle([&](auto& optimizer) { return optimizer.state_view(tensor, plane); });
}

std::uint64_t BoundOptimizer::factors(TensorId tensor) {
    check_tensor(tensor);
    return when_idle([&](auto& optimizer) { return optimizer.factors(tensor); });
}

void BoundOptimizer::read_factors(TensorId tensor, std::uint64_t first, nb::handle out) {
    check_tensor(tensor);
    const auto array = plane_array(out, ArrayAccess::write, ElementType::fp32);
    when_idle([&](auto& optimizer) { optimizer.read_factors(tensor, first, floats(array)); });
}

void BoundOptimizer::write_factors(TensorId tensor, std::uint64_t first, nb::handle values) {
    check_tensor(tensor);
    const auto array = plane_array(values, ArrayAccess::read, ElementType::fp32);
    when_idle([&](auto& optimizer) { optimizer.write_factors(tensor, first, floats(array)); });
}

void BoundOptimizer::read_masters(TensorId tensor, std::uint64_t first, nb::handle out) {
    move_floats(tensor, first, out, ArrayAccess::write,
                [&](auto& optimizer, std::uint64_t at, auto part) {
                    optimizer.read_masters(tensor, at, part);
                });
}

void BoundOptimizer::read_average(TensorId tensor, std::uint64_t first, nb::handle out) {
    move_floats(tensor, first, out, ArrayAccess::write,
                [&](auto& optimizer, std::uint64_t at, auto part) {
                    optimizer.read_average(tensor, at, part);
                });
}

void BoundOptimizer::write_average(TensorId tensor, std::uint64_t first, nb::handle values) {
    move_floats(tensor, first, values, ArrayAccess::read,
                [&](auto& optimizer, std::uint64_t at, auto part) {
                    optimizer.write_average(tensor, at, part);
                });
}

void BoundOptimizer::reset_residue(TensorId tensor) {
    check_tensor(tensor);
    when_idle([&](auto& optimizer) { optimizer.reset_residue(tensor); });
}

void BoundOptimizer::read_residue(TensorId tensor, std::uint64_t first, nb::handle out) {
    check_tensor(tensor);
    const auto array = plane_array(out, ArrayAccess::write, ElementType::int16);
    in_pieces(parameters_[tensor].elements, first, int16s(array), [&](std::uint64_t at, auto part) {
        when_idle([&](auto& optimizer) { optimizer.read_residue(tensor, at, part); });
    });
}

void BoundOptimizer::write_residue(TensorId tensor, std::uint64_t first, nb::handle values) {
    check_tensor(tensor);
    const auto array = plane_array(values, ArrayAccess::read, ElementType::int16);
    when_idle([&](auto& optimizer) { optimizer.write_residue(tensor, first, int16s(array)); });
}

}  // namespace spillway::integrations
