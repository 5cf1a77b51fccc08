// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>

#include "engine/cli/option_set.h"

namespace spillway::engine {

/// `--weights last|average`, of verbs that read what a run has learnt.
inline void add_weights_option(OptionSet& options, std::string& weights) {
    options.add_choice({"weights", "last|average",
                        "those of the last update, or their average (train --average)", ""},
                       {"last", "average"}, weights);
}

}  // namespace spillway::engine
