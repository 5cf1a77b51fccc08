// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>
#include <string>

namespace spillway::cuda {

/// A library that was asked for while the program runs.
struct LoadedLibrary {
    std::shared_ptr<void> handle;  ///< for dlsym; null where there is none
    std::string refusal;           ///< the loader's reason then
};

/// Loads by the rules of dlopen. The vendor's libraries keep threads and state: once loaded they
/// stay in the process, whatever becomes of the handle.
[[nodiscard]] LoadedLibrary load_library(const std::string& name);

}  // namespace spillway::cuda
