// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <span>
#include <string>

#include "engine/cli/console.h"

namespace spillway::engine {

/// `spillway clean`: returns the exit code; throws as run_program() expects it.
[[nodiscard]] int run_clean(std::span<const std::string> arguments, Console& console);

}  // namespace spillway::engine
