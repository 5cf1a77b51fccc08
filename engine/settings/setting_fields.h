// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/cli/option_set.h"
#include "engine/settings/train_settings.h"

namespace spillway::engine {

/// What changing a setting on a resume means.
enum class SettingScope {
    run,        ///< fixed by the run: it changes the result
    length,     ///< how long the run goes; a resume may change it, else it goes on as before
    placement,  ///< where things live and what is written: never recorded
};

/// One setting: how it is called, shown, read and written as text. The one table that command
/// line, configuration file, JSON summary, the run's record and the resume check are made from.
struct SettingField {
    std::string name;           ///< as the flag, without "--"
    std::string value_name;     ///< what --help shows behind it; "" for a switch
    std::string help;           ///< one sentence
    std::string default_words;  ///< shown instead of the default value where that says little
    SettingScope scope = SettingScope::placement;
    JsonKind kind = JsonKind::text;
    /// The value in one canonical form: equal values, equal texts; write(read()) changes nothing.
    std::function<std::string(const TrainSettings&)> read;
    /// Throws std::invalid_argument saying what is wrong with the text.
    std::function<void(TrainSettings&, const std::string&)> write;
};

/// In the order of --help. A value that is to come in a later version is refused by write().
[[nodiscard]] const std::vector<SettingField>& setting_fields();

/// Declares every field and every name to come on `options`; parsing them writes `settings`, which
/// must outlive `options`.
void declare_settings(OptionSet& options, TrainSettings& settings);

}  // namespace spillway::engine
