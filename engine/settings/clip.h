// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>

namespace spillway::offload {
struct GradientSummary;
struct UpdateStep;
}  // namespace spillway::offload

namespace spillway::engine {

/// What is done to a step's gradients before the update.
enum class ClipKind {
    off,
    norm,   ///< scaled so that the 2-norm over all of them is at most `most`
    value,  ///< each value clamped to [-most, most]
    layer,  ///< each tensor's scaled so that its own norm is at most `most`: another direction than
            ///< the global gradient's, so inexact
};
struct Clip {
    ClipKind kind = ClipKind::norm;
    double most = 1;

    bool operator==(const Clip&) const = default;
};
/// "0.5" (or "norm:0.5"), "value:0.5", "layer:0.5", "off". Throws std::invalid_argument on another
/// word or no number; any finite number is taken.
[[nodiscard]] Clip parse_clip(const std::string& text);
/// As parse_clip() reads it.
[[nodiscard]] std::string clip_text(const Clip& clip);

/// Has the step do it, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_ do. `gradient` is
/// asked for its norm by `norm` and for its tensors' squares by `layer`, and for nothing else.
void clip_gradients(const Clip& clip, const offload::GradientSummary& gradient,
                    offload::UpdateStep& step);

}  // namespace spillway::engine
