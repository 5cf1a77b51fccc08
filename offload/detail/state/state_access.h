// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "cpu_optim/state_format.h"
#include "offload/detail/drives/plane_access.h"
#include "offload/plane.h"

namespace spillway::offload::detail {

/// Reads and writes any run of elements of one state plane as fp32, in whatever format it is kept,
/// piece by piece. As PlaneAccess, in whose place it is used.
class StateAccess {
  public:
    /// `index`: of the plane, in the optimizer's order, among the state of `planes`; `kind`: what
    /// it holds for the tensor whose elements are read or written.
    StateAccess(PlaneAccess& access, PlaneSet planes, std::size_t index, cpu_optim::MomentKind kind)
        : access_(access),
          format_(state_format_of(planes)),
          index_(index),
          plane_(state_planes_in(format_)[index]),
          kind_(kind) {}

    void read(ElementRange range, std::span<float> out);
    /// int8: from the first element of a block; what the last block holds behind `range` becomes 0.
    void write(ElementRange range, std::span<const float> values);

  private:
    void read_bf16(ElementRange range, std::span<float> out);
    void write_bf16(ElementRange range, std::span<const float> values);
    void read_int8(ElementRange range, std::span<float> out);
    void write_int8(ElementRange range, std::span<const float> values);
    /// The scales of the tiles that hold the blocks, as they are.
    void load_scales(ElementRange blocks);
    /// Of the block that starts at element `block`; load_scales() was called for elements from
    /// `first` on.
    [[nodiscard]] std::uint8_t& scale(std::uint64_t first, std::uint64_t block);

    PlaneAccess& access_;
    cpu_optim::StateFormat format_;
    std::size_t index_;
    Plane plane_;
    cpu_optim::MomentKind kind_;
    std::vector<std::uint16_t> halves_;
    std::vector<std::uint8_t> codes_;
    std::vector<std::uint8_t> scales_;
};

}  // namespace spillway::offload::detail
