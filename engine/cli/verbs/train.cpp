// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/verbs/train.h"

#include <optional>
#include <string>

#include <fmt/format.h>

#include "engine/cli/option_set.h"
#include "engine/settings/setting_fields.h"
#include "engine/train/run_setup.h"
#include "engine/train/stop_request.h"
#include "engine/train/train_report.h"
#include "engine/train/trainer.h"
#include "offload/errors.h"

namespace spillway::engine {

int run_train(std::span<const std::string> arguments, Console& console) {
    TrainSettings settings;
    OptionSet options("train", "Trains a model whose state need not fit the machine's memory.");
    declare_settings(options, settings);
    if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
        console.result(options.help());
        return as_int(ExitCode::done);
    }
    const StopRequest stop;
    std::optional<RunSetup> prepared;
    try {
        prepared.emplace(prepare_run(
            settings, [&](std::string_view name) { return options.given(name); }, stop, console));
    } catch (const offload::RelocationStopped& stopped) {
        console.line(std::string(stopped.what()) + "; go on with --resume");
        return as_int(ExitCode::interrupted);
    }
    auto& setup = *prepared;
    Trainer trainer(setup, console);
    const auto result = trainer.run(stop);
    for (const auto& line : train_report_lines(result))
        console.line(line);
    if (!result.settings.json.empty())
        console.write_json(train_report_json(result), result.settings.json);
    if (!result.interrupted)
        return as_int(ExitCode::done);
    console.line(fmt::format("interrupted after the commit at step {}; go on with --resume",
                             result.progress.iteration));
    return as_int(ExitCode::interrupted);
}

}  // namespace spillway::engine
