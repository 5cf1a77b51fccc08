// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <span>
#include <string>

#include "engine/cli/console.h"

namespace spillway::engine {

/// `spillway bench WHAT`: returns the exit code; throws as run_program() expects it.
[[nodiscard]] int run_bench(std::span<const std::string> arguments, Console& console);

/// `spillway bench storage`, without these two words.
[[nodiscard]] int run_bench_storage(std::span<const std::string> arguments, Console& console);

/// `spillway bench link`, without these two words.
[[nodiscard]] int run_bench_link(std::span<const std::string> arguments, Console& console);

/// `spillway bench adam`, without these two words.
[[nodiscard]] int run_bench_adam(std::span<const std::string> arguments, Console& console);

/// `spillway bench memory`, without these two words.
[[nodiscard]] int run_bench_memory(std::span<const std::string> arguments, Console& console);

/// `spillway bench all`, without these two words.
[[nodiscard]] int run_bench_all(std::span<const std::string> arguments, Console& console);

/// `spillway bench step`, without these two words.
[[nodiscard]] int run_bench_step(std::span<const std::string> arguments, Console& console);

}  // namespace spillway::engine
