// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/state_access.h"

#include <algorithm>
#include <array>

#include "cpu_optim/float_formats.h"
#include "cpu_optim/moment_codec.h"

namespace spillway::offload::detail {
namespace {

using cpu_optim::block_elements;
using cpu_optim::StateFormat;

/// What is kept of a piece would else be memory that no budget knows of.
constexpr std::uint64_t piece_elements = 8 * tile_elements;

template <typename Visit>
void in_pieces(ElementRange range, Visit visit) {
    for (auto begin = range.begin; begin < range.end;) {
        const auto end = std::min(range.end, (begin / piece_elements + 1) * piece_elements);
        visit(ElementRange{begin, end}, static_cast<std::size_t>(begin - range.begin));
        begin = end;
    }
}

ElementRange whole_blocks(ElementRange range) {
    return {range.begin / block_elements * block_elements,
            (range.end + block_elements - 1) / block_elements * block_elements};
}

/// Of a block that starts at `block`, those that `range` has.
ElementRange of_block(std::uint64_t block, ElementRange range) {
    return {std::max(range.begin, block), std::min(range.end, block + block_elements)};
}

TileRange tiles_of(ElementRange range) {
    return {range.begin / tile_elements, (range.end + tile_elements - 1) / tile_elements};
}

}  // namespace

void StateAccess::read(ElementRange range, std::span<float> out) {
    if (format_ == StateFormat::fp32) {
        access_.read(plane_, range.begin * sizeof(float), std::as_writable_bytes(out));
        return;
    }
    in_pieces(range, [&](ElementRange piece, std::size_t at) {
        const auto part = out.subspan(at, static_cast<std::size_t>(piece.size()));
        format_ == StateFormat::bf16 ? read_bf16(piece, part) : read_int8(piece, part);
    });
}

void StateAccess::write(ElementRange range, std::span<const float> values) {
    if (format_ == StateFormat::fp32) {
        access_.write(plane_, range.begin * sizeof(float), std::as_bytes(values));
        return;
    }
    in_pieces(range, [&](ElementRange piece, std::size_t at) {
        const auto part = values.subspan(at, static_cast<std::size_t>(piece.size()));
        format_ == StateFormat::bf16 ? write_bf16(piece, part) : write_int8(piece, part);
    });
}

void StateAccess::read_bf16(ElementRange range, std::span<float> out) {
    halves_.resize(out.size());
    access_.read(plane_, range.begin * sizeof(std::uint16_t),
                 std::as_writable_bytes(std::span(halves_)));
    std::ranges::transform(halves_, out.begin(), cpu_optim::from_bf16);
}

void StateAccess::write_bf16(ElementRange range, std::span<const float> values) {
    halves_.resize(values.size());
    std::ranges::transform(values, halves_.begin(),
                           [](float value) { return cpu_optim::to_bf16(value); });
    access_.write(plane_, range.begin * sizeof(std::uint16_t), std::as_bytes(std::span(halves_)));
}

void StateAccess::load_scales(ElementRange blocks) {
    const auto tiles = tiles_of(blocks);
    scales_.resize(static_cast<std::size_t>(tiles.size()) * tile_bytes(Plane::scales));
    access_.read(Plane::scales, tiles.begin * tile_bytes(Plane::scales),
                 std::as_writable_bytes(std::span(scales_)));
}

std::uint8_t& StateAccess::scale(std::uint64_t first, std::uint64_t block) {
    const auto tile = block / tile_elements - first / tile_elements;
    return scales_[static_cast<std::size_t>(tile) * tile_bytes(Plane::scales) +
                   scales_offset_bytes(index_) +
                   static_cast<std::size_t>(block % tile_elements / block_elements)];
}

void StateAccess::read_int8(ElementRange range, std::span<float> out) {
    const auto blocks = whole_blocks(range);
    codes_.resize(static_cast<std::size_t>(blocks.size()));
    access_.read(plane_, blocks.begin, std::as_writable_bytes(std::span(codes_)));
    load_scales(blocks);
    std::array<float, block_elements> values;
    for (auto block = blocks.begin; block < blocks.end; block += block_elements) {
        const auto codes = std::span(codes_)
                               .subspan(static_cast<std::size_t>(block - blocks.begin))
                               .first<block_elements>();
        cpu_optim::decode_block(kind_, codes, scale(blocks.begin, block), values);
        const auto part = of_block(block, range);
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(part.begin - block), part.size(),
                    out.begin() + static_cast<std::ptrdiff_t>(part.begin - range.begin));
    }
}

void StateAccess::write_int8(ElementRange range, std::span<const float> values) {
    const auto blocks = whole_blocks(range);
    codes_.resize(static_cast<std::size_t>(blocks.size()));
    load_scales(blocks);
    for (auto block = blocks.begin; block < blocks.end; block += block_elements) {
        const auto at = static_cast<std::size_t>(block - blocks.begin);
        const auto codes = std::span(codes_).subspan(at).first<block_elements>();
        const auto part = of_block(block, range);
        scale(blocks.begin, block) = cpu_optim::encode_block(
            kind_, values.subspan(at, static_cast<std::size_t>(part.size())), codes);
    }
    access_.write(plane_, blocks.begin, std::as_bytes(std::span(codes_)));
    access_.write(Plane::scales, tiles_of(blocks).begin * tile_bytes(Plane::scales),
                  std::as_bytes(std::span(scales_)));
}

}  // namespace spillway::offload::detail
