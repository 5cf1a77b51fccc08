// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

/// integrations/python: the native module of the Python package. Arrays of any framework cross by
/// DLPack or the buffer protocol and are never copied.
namespace spillway::integrations {

enum class ArrayAccess { read, write };

enum class ElementType : std::uint8_t { fp32, bf16, fp16, int16 };

/// The memory of a foreign array, kept alive by this object. To be made, copied and destroyed with
/// the GIL held.
struct HostArray {
    nanobind::ndarray<nanobind::ro> owner;
    void* data = nullptr;  ///< to be written only if made for ArrayAccess::write
    std::vector<std::uint64_t> shape;
    std::uint64_t elements = 0;
    ElementType type = ElementType::fp32;
};

/// `what` names the array in errors: "the gradient of 'wte'". Throws nanobind::type_error on
/// what is no array, std::invalid_argument on an array that is not in host memory, has gaps, is
/// read-only but must be written, or whose elements are none of `accepted`.
[[nodiscard]] HostArray host_array(nanobind::handle object, ArrayAccess access,
                                   std::initializer_list<ElementType> accepted,
                                   std::string_view what);

}  // namespace spillway::integrations
