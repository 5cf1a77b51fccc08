// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/python/host_array.h"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace spillway::integrations {
namespace {

namespace nb = nanobind;
using AnyArray = nb::ndarray<nb::ro>;

struct NamedType {
    ElementType type;
    nb::dlpack::dtype_code code;
    std::uint8_t bits;
    std::string_view name;
};

constexpr std::array<NamedType, 4> named_types{{
    {ElementType::fp32, nb::dlpack::dtype_code::Float, 32, "float32"},
    {ElementType::bf16, nb::dlpack::dtype_code::Bfloat, 16, "bfloat16"},
    {ElementType::fp16, nb::dlpack::dtype_code::Float, 16, "float16"},
    {ElementType::int16, nb::dlpack::dtype_code::Int, 16, "int16"},
}};

std::string_view name_of(ElementType type) {
    return std::find_if(named_types.begin(), named_types.end(),
                        [type](const NamedType& named) { return named.type == type; })
        ->name;
}

std::string name_of(nb::dlpack::dtype type) {
    using Code = nb::dlpack::dtype_code;
    const auto prefix = [&]() -> std::string {
        switch (static_cast<Code>(type.code)) {
            case Code::Int:
                return "int";
            case Code::UInt:
                return "uint";
            case Code::Float:
                return "float";
            case Code::Bfloat:
                return "bfloat";
            case Code::Complex:
                return "complex";
            case Code::Bool:
                return "bool";
            default:
                return fmt::format("DLPack type {} of bits ", type.code);
        }
    }();
    return fmt::format("{}{}{}", prefix, type.bits,
                       type.lanes == 1 ? "" : fmt::format(" x {}", type.lanes));
}

std::string class_name(nb::handle object) {
    return nb::type_name(object.type()).c_str();
}

/// JAX lends the memory of arrays whose values must never change without marking it read-only.
bool is_immutable(nb::handle object) {
    const nb::str module(object.type().attr("__module__"));
    return std::string_view(module.c_str()).starts_with("jax");
}

AnyArray import_array(nb::handle object, ArrayAccess access, std::string_view what) {
    if (access == ArrayAccess::write && !is_immutable(object)) {
        nb::ndarray<> writable;
        if (nb::try_cast(object, writable, false))
            return AnyArray(writable);
    }
    AnyArray array;
    if (!nb::try_cast(object, array, false)) {
        const auto text = fmt::format(
            "{}: a {} does not give its memory by DLPack or the buffer protocol; pass a NumPy "
            "array, a torch tensor or the like (bfloat16 passes from torch and JAX, not NumPy)",
            what, class_name(object));
        throw nb::type_error(text.c_str());
    }
    if (access == ArrayAccess::write)
        throw std::invalid_argument(
            fmt::format("{}: the {} is read-only and would be written; pass a writable copy "
                        "(numpy.array(array))",
                        what, class_name(object)));
    return array;
}

void check_device(const AnyArray& array, std::string_view what) {
    const int device = array.device_type();
    // Page-locked host memory has DLPack types of its own.
    if (device == nb::device::cpu::value || device == nb::device::cuda_host::value ||
        device == nb::device::rocm_host::value)
        return;
    const bool cuda =
        device == nb::device::cuda::value || device == nb::device::cuda_managed::value;
    throw std::invalid_argument(fmt::format(
        "{} is on {} {}, it must be in host memory: this version has no CUDA device; copy it to "
        "the CPU first (torch: tensor.cpu(), CuPy: cupy.asnumpy(array))",
        what, cuda ? "CUDA device" : fmt::format("a device of DLPack type {}, number", device),
        array.device_id()));
}

void check_layout(const AnyArray& array, std::string_view what) {
    if (array.size() < 2)
        return;
    std::int64_t expected = 1;
    for (std::size_t axis = array.ndim(); axis-- > 0;) {
        const auto extent = static_cast<std::int64_t>(array.shape(axis));
        if (extent != 1 && array.stride(axis) != expected) {
            const auto* shape = array.shape_ptr();
            const auto* strides = array.stride_ptr();
            throw std::invalid_argument(fmt::format(
                "{} has shape ({}) and strides ({}) in elements, it must be C-contiguous "
                "(row-major, without gaps): pass numpy.ascontiguousarray(array) or "
                "tensor.contiguous()",
                what, fmt::join(shape, shape + array.ndim(), ", "),
                fmt::join(strides, strides + array.ndim(), ", ")));
        }
        expected *= extent;
    }
}

ElementType element_type(const AnyArray& array, std::initializer_list<ElementType> accepted,
                         std::string_view what) {
    const auto found = array.dtype();
    for (const NamedType& named : named_types)
        if (static_cast<std::uint8_t>(named.code) == found.code && named.bits == found.bits &&
            found.lanes == 1 &&
            std::find(accepted.begin(), accepted.end(), named.type) != accepted.end())
            return named.type;
    std::vector<std::string_view> names;
    for (const ElementType type : accepted)
        names.push_back(name_of(type));
    throw std::invalid_argument(fmt::format("{} has elements of type {}, it must be {}: convert it",
                                            what, name_of(found), fmt::join(names, " or ")));
}

}  // namespace

HostArray host_array(nb::handle object, ArrayAccess access,
                     std::initializer_list<ElementType> accepted, std::string_view what) {
    HostArray result;
    result.owner = import_array(object, access, what);
    check_device(result.owner, what);
    result.type = element_type(result.owner, accepted, what);
    check_layout(result.owner, what);
    result.elements = result.owner.size();
    result.shape.assign(result.owner.shape_ptr(), result.owner.shape_ptr() + result.owner.ndim());
    result.data = static_cast<std::byte*>(result.owner.data_handle()) + result.owner.byte_offset();
    return result;
}

}  // namespace spillway::integrations
