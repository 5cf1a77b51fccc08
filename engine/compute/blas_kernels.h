// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cpu_optim/isa.h"

/// Which of its sets of kernels OpenBLAS runs. It chooses by the processor's model when it is
/// loaded, once; on a model that is newer than itself it falls back to kernels of 2004, several
/// times slower than what the processor could run.
namespace spillway::engine {

/// The variable that tells OpenBLAS which to take, when it is loaded.
inline constexpr const char* blas_kernels_variable = "OPENBLAS_CORETYPE";

/// The set that runs in this process, by OpenBLAS's name of it: "Haswell".
[[nodiscard]] std::string blas_kernels();

/// What to take instead of `chosen` on a processor that runs `isa`; nothing where that would not be
/// faster.
[[nodiscard]] std::optional<std::string> faster_blas_kernels(std::string_view chosen,
                                                             cpu_optim::Isa isa);

}  // namespace spillway::engine
