// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

/// cpu_optim/: the arithmetic of optimizers on spans. Every kernel is written once over Google
/// Highway and gives the same bits on every instruction set as the scalar reference beside it. Pure
/// functions: thread-safe, no allocation, no state; callers bring the threads.
namespace spillway::cpu_optim {

/// An instruction set a kernel can be asked to run on.
enum class Isa { scalar, avx2, avx512 };

/// The widest one this processor (and operating system) can run.
[[nodiscard]] Isa best_isa() noexcept;
/// All that run here, narrowest first; never empty.
[[nodiscard]] std::vector<Isa> supported_isas();
[[nodiscard]] std::string_view isa_name(Isa isa) noexcept;
/// Floats in one vector register of the kernels that run on `isa`, as those kernels report it: 1,
/// 8, 16. This and every kernel throws std::invalid_argument on an `isa` that does not run here.
[[nodiscard]] std::size_t isa_float_lanes(Isa isa);
/// "auto", "scalar", "avx2", "avx512". Throws std::invalid_argument naming the value found, what is
/// accepted and what this machine supports; a known but unsupported name is refused too.
[[nodiscard]] Isa parse_isa(std::string_view name);

}  // namespace spillway::cpu_optim
