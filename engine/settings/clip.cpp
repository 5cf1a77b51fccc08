// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/clip.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cpu_optim/gradient_clip.h"
#include "offload/offload_engine.h"

namespace spillway::engine {
namespace {

constexpr std::array<std::pair<std::string_view, ClipKind>, 3> kinds{
    {{"norm:", ClipKind::norm}, {"value:", ClipKind::value}, {"layer:", ClipKind::layer}}};

}  // namespace

Clip parse_clip(const std::string& text) {
    if (text == "off")
        return {.kind = ClipKind::off, .most = 0};
    Clip clip;
    std::string_view number = text;
    for (const auto& [prefix, kind] : kinds) {
        if (text.starts_with(prefix)) {
            clip.kind = kind;
            number.remove_prefix(prefix.size());
        }
    }
    const auto* const end = number.data() + number.size();
    const auto [stop, error] = std::from_chars(number.data(), end, clip.most);
    if (number.empty() || error != std::errc{} || stop != end || !std::isfinite(clip.most))
        throw std::invalid_argument(fmt::format(
            "\"{}\" is no number, nor value:X, layer:X with a number X, nor off", text));
    return clip;
}

std::string clip_text(const Clip& clip) {
    switch (clip.kind) {
        case ClipKind::off:
            return "off";
        case ClipKind::norm:
            break;
        case ClipKind::value:
            return fmt::format("value:{}", clip.most);
        case ClipKind::layer:
            return fmt::format("layer:{}", clip.most);
    }
    return fmt::format("{}", clip.most);
}

void clip_gradients(const Clip& clip, const offload::GradientSummary& gradient,
                    offload::UpdateStep& step) {
    switch (clip.kind) {
        case ClipKind::off:
            break;
        case ClipKind::norm:
            step.gradient_scale = std::min(1.0, clip.most / (gradient.norm + 1e-6));
            break;
        case ClipKind::value:
            step.most_gradient = static_cast<float>(clip.most);
            break;
        case ClipKind::layer:
            for (const auto squares : gradient.tensor_squares)
                step.tensor_scales.push_back(cpu_optim::clip_coefficient(clip.most, squares, 1.0));
            break;
    }
}

}  // namespace spillway::engine
