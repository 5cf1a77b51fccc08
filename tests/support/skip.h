// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>

namespace spillway::testing {

/// Marks the running case as skipped for `reason` (something this machine lacks); return from the
/// case right after. The program then exits with 77, which CTest shows as a skip, unless an
/// assertion failed.
void skip(const std::string& reason);

}  // namespace spillway::testing
