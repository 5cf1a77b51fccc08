// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/interop/run_model.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "engine/cli/usage_error.h"
#include "engine/plan/memory_plan.h"
#include "engine/settings/average_choice.h"
#include "engine/train/run_record.h"

namespace spillway::engine {

namespace {

TrainSettings settings_of_run(const offload::Manifest& manifest) {
    TrainSettings settings;
    static_cast<void>(adopt_run_record(settings, manifest.client_settings,
                                       [](std::string_view) { return false; }));
    return settings;
}

}  // namespace

Gpt2Config model_of_run(const offload::Manifest& manifest) {
    const auto settings = settings_of_run(manifest);
    const auto layout = make_layout(settings);
    const auto expected = layout.order.tensors();
    const auto same = [](const offload::TensorSpec& a, const offload::TensorSpec& b) {
        return a.name == b.name && a.shape == b.shape;
    };
    const auto [model, stored] = std::mismatch(
        expected.begin(), expected.end(), manifest.tensors.begin(), manifest.tensors.end(), same);
    if (model != expected.end() || stored != manifest.tensors.end())
        throw std::runtime_error(fmt::format(
            "the state's tensors are not those of its recorded model {}: '{}' stands where '{}' is "
            "expected",
            settings.model, stored == manifest.tensors.end() ? "nothing" : stored->name,
            model == expected.end() ? "nothing" : model->name));
    return layout.config;
}

offload::WeightKind stored_weights(const offload::StateReader& reader, const std::string& weights) {
    if (weights != "average")
        return offload::WeightKind::newest;
    const auto problem =
        average_problem(settings_of_run(reader.manifest()), reader.commit().update);
    if (!problem.empty())
        throw UsageError("--weights average: " + problem);
    return offload::WeightKind::averaged;
}

}  // namespace spillway::engine
