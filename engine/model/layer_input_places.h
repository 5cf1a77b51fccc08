// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace spillway::engine {

/// What becomes of inputs that lose their place on the device.
enum class LostInputs {
    moved,       ///< elsewhere, and back
    made_again,  ///< from the input of the layer before, which keeps its place
};

/// Which place on the device each layer's input has, where there are fewer places than layers. The
/// inputs of some layers, spread evenly, have one of their own; the others take turns in two, so
/// that one can be brought or taken away while a layer uses the other. In forward the next but one
/// of those takes over a place, which its holder must have left; in backward it is given back, in
/// time for its former holder to return to it. The last two never leave.
///
/// Of inputs that are made again one place is enough, since no two neighbours share it.
class LayerInputPlaces {
  public:
    /// `places`: fewest() to `layers`, or 0 for `layers`.
    LayerInputPlaces(std::size_t layers, std::size_t places, LostInputs lost = LostInputs::moved);

    [[nodiscard]] static std::size_t fewest(std::size_t layers, LostInputs lost) noexcept;

    [[nodiscard]] std::size_t places() const noexcept { return places_; }
    [[nodiscard]] std::size_t place_of(std::size_t layer) const noexcept {
        return layers_[layer].place;
    }
    /// It leaves its place in forward and returns in backward.
    [[nodiscard]] bool leaves(std::size_t layer) const noexcept { return layers_[layer].leaves; }
    /// Whose place it takes over, if anybody's.
    [[nodiscard]] const std::optional<std::size_t>& former(std::size_t layer) const noexcept {
        return layers_[layer].former;
    }
    /// Those that leave, in order.
    [[nodiscard]] std::vector<std::size_t> leaving() const;

  private:
    struct Layer {
        std::size_t place = 0;
        bool leaves = false;
        std::optional<std::size_t> former;
    };
    std::size_t places_;
    std::vector<Layer> layers_;
};

}  // namespace spillway::engine
