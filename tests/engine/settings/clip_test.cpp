// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/clip.h"

#include <stdexcept>

#include <catch2/catch.hpp>

#include "engine/settings/optimizer_choice.h"
#include "offload/offload_engine.h"

using namespace spillway;
using namespace spillway::engine;

TEST_CASE("clip: each kind has one text") {
    CHECK(parse_clip("0.5") == Clip{ClipKind::norm, 0.5});
    CHECK(parse_clip("norm:0.5") == Clip{ClipKind::norm, 0.5});
    CHECK(parse_clip("value:2") == Clip{ClipKind::value, 2});
    CHECK(parse_clip("layer:1e-3") == Clip{ClipKind::layer, 1e-3});
    CHECK(parse_clip("off").kind == ClipKind::off);
    for (const auto* text : {"0.5", "value:2", "layer:0.001", "off"})
        CHECK(clip_text(parse_clip(text)) == text);
    for (const auto* wrong :
         {"", "value", "value:", "layer:x", "global:1", "1x", "inf", "value:nan", "OFF"})
        CHECK_THROWS_AS(parse_clip(wrong), std::invalid_argument);
}

TEST_CASE("clip: what a step is told") {
    const offload::GradientSummary gradient{
        .norm = 5, .nonfinite_tensor = "", .tensor_squares = {9, 16, 0}};
    offload::UpdateStep step;
    clip_gradients({ClipKind::off, 0}, gradient, step);
    CHECK(step.gradient_scale == 1);
    clip_gradients({ClipKind::norm, 10}, gradient, step);
    CHECK(step.gradient_scale == 1);
    clip_gradients({ClipKind::norm, 1}, gradient, step);
    CHECK(step.gradient_scale == 1 / (5 + 1e-6));
    CHECK(step.tensor_scales.empty());
    CHECK_FALSE(step.most_gradient);
    step = {};
    clip_gradients({ClipKind::layer, 3.5}, gradient, step);
    CHECK(step.tensor_scales == std::vector<double>{1, 3.5 / (4 + 1e-6), 1});
    CHECK(step.gradient_scale == 1);
    step = {};
    clip_gradients({ClipKind::value, 0.5}, gradient, step);
    CHECK(step.most_gradient == 0.5f);
    CHECK(step.tensor_scales.empty());
}

TEST_CASE("clip: only each tensor by its own norm is inexact") {
    TrainSettings settings;
    for (const auto kind : {ClipKind::off, ClipKind::norm, ClipKind::value}) {
        settings.clip.kind = kind;
        CHECK(is_exact(settings));
    }
    settings.clip.kind = ClipKind::layer;
    CHECK_FALSE(is_exact(settings));
}
