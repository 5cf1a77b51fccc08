// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <nanobind/nanobind.h>

namespace spillway::integrations {

/// Adds Refused, IntegrityError and NonfiniteGradient to `module` and has C++ exceptions raised as
/// these: PlanRefused and FolderRefused as Refused, std::invalid_argument as ValueError,
/// std::system_error as OSError with errno, every other std::exception as RuntimeError.
void register_errors(nanobind::module_& module);

}  // namespace spillway::integrations
