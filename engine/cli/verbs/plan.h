// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <span>
#include <string>

#include "engine/cli/console.h"

namespace spillway::engine {

/// `spillway plan`: returns the exit code; throws as run_verb() expects it.
[[nodiscard]] int run_plan(std::span<const std::string> arguments, Console& console);

}  // namespace spillway::engine
