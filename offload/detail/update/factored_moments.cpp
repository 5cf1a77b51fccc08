// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/update/factored_moments.h"

#include <algorithm>

namespace spillway::offload::detail {
namespace {

/// Columns that one thread adds up at a time, and how many threads share them at most.
constexpr std::uint64_t stripe_columns = 512;
constexpr std::uint64_t stripes = 32;

/// What the tiles of a turn need room for, at most.
struct PlaceNeeds {
    std::size_t pieces = 0;
    std::size_t columns = 0;
};

PlaceNeeds most_in_a_tile(const ElementOrder& order, const FactorLayout& layout) {
    PlaceNeeds most;
    PlaceNeeds here;
    std::uint64_t tile = 0;
    for (TensorId tensor = 0; tensor < order.tensors().size(); ++tensor) {
        const auto range = order.range(tensor);
        if (range.size() == 0 || layout.of(tensor).is_vector())
            continue;
        for (auto first = range.begin; first < range.end;) {
            if (first / tile_elements != tile) {
                tile = first / tile_elements;
                here = {};
            }
            const auto end = std::min(range.end, (tile + 1) * tile_elements);
            for_each_piece(layout.of(tensor), tensor, first - range.begin, end - range.begin,
                           [&](const ColumnPiece& piece) {
                               ++here.pieces;
                               here.columns += static_cast<std::size_t>(piece.columns);
                           });
            most.pieces = std::max(most.pieces, here.pieces);
            most.columns = std::max(most.columns, here.columns);
            first = end;
        }
    }
    return most;
}

std::size_t bytes_of(const PlaceNeeds& needs) {
    return needs.pieces * sizeof(ColumnPiece) + needs.columns * sizeof(double);
}

/// Threads meet after each turn: it has many tiles, but less if they need much room.
std::size_t places_of(const ElementOrder& order, const PlaceNeeds& needs) {
    constexpr std::size_t least = 16;
    constexpr std::size_t most = 64;
    constexpr std::size_t room_bytes = std::size_t{2} << 20;
    const auto fitting = std::clamp(room_bytes / (bytes_of(needs) + 1), least, most);
    return static_cast<std::size_t>(std::min<std::uint64_t>(fitting, order.tiles()));
}

std::size_t measures_of(const ElementOrder& order) {
    return static_cast<std::size_t>(order.tiles()) + order.tensors().size();
}

}  // namespace

FactoredMoments::FactoredMoments(const ElementOrder& order)
    : layout_(order),
      values_(static_cast<std::size_t>(layout_.values())),
      squares_(static_cast<std::size_t>(layout_.factors())),
      row_means_(static_cast<std::size_t>(layout_.matrices())),
      measures_(measures_of(order)) {
    const auto needs = most_in_a_tile(order, layout_);
    places_.resize(places_of(order, needs));
    for (auto& place : places_) {
        place.pieces.reserve(needs.pieces);
        place.columns.resize(needs.columns);
    }
}

std::size_t FactoredMoments::bytes(const ElementOrder& order) {
    const FactorLayout layout(order);
    const auto needs = most_in_a_tile(order, layout);
    return static_cast<std::size_t>(layout.values()) * sizeof(float) +
           static_cast<std::size_t>(layout.factors()) * sizeof(double) +
           static_cast<std::size_t>(layout.matrices()) * sizeof(float) +
           order.tensors().size() * sizeof(FactoredTensor) + measures_of(order) * sizeof(Measure) +
           places_of(order, needs) * (sizeof(Place) + bytes_of(needs));
}

std::span<float> FactoredMoments::values_of(TensorId tensor) {
    const auto& shape = layout_.of(tensor);
    return std::span(values_).subspan(static_cast<std::size_t>(shape.first_value),
                                      static_cast<std::size_t>(shape.values()));
}

std::span<double> FactoredMoments::squares_of(TensorId tensor) {
    const auto& shape = layout_.of(tensor);
    return std::span(squares_).subspan(static_cast<std::size_t>(shape.first_factor),
                                       static_cast<std::size_t>(shape.values()));
}

std::span<float> FactoredMoments::row_means_of(TensorId tensor) {
    const auto& shape = layout_.of(tensor);
    return std::span(row_means_)
        .subspan(static_cast<std::size_t>(shape.first_matrix),
                 static_cast<std::size_t>(shape.matrices));
}

double* FactoredMoments::add_piece(std::size_t place, const ColumnPiece& piece) {
    auto& [pieces, columns, used] = places_[place];
    auto* const room = columns.data() + used;
    pieces.push_back(piece);
    used += static_cast<std::size_t>(piece.columns);
    std::fill(room, columns.data() + used, 0.0);
    return room;
}

void FactoredMoments::end_turn(UpdateThreads& threads) {
    threads.for_each(stripes, [&](std::uint64_t stripe) {
        for (const auto& place : places_)
            add_up(place, stripe);
    });
    for (auto& place : places_) {
        place.pieces.clear();
        place.used = 0;
    }
}

/// Every stripes-th block of columns, so that no two threads add to the same one.
void FactoredMoments::add_up(const Place& place, std::uint64_t stripe) {
    const auto* from = place.columns.data();
    for (const auto& piece : place.pieces) {
        auto* const sums = squares_of(piece.tensor).data() + layout_.of(piece.tensor).row_values();
        const auto end = piece.first_column + piece.columns;
        for (auto block = piece.first_column / stripe_columns; block * stripe_columns < end;
             ++block) {
            if (block % stripes != stripe)
                continue;
            const auto last = std::min(end, (block + 1) * stripe_columns);
            for (auto j = std::max(piece.first_column, block * stripe_columns); j < last; ++j)
                sums[j] += from[j - piece.first_column];
        }
        from += piece.columns;
    }
}

}  // namespace spillway::offload::detail
