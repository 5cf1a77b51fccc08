// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <string>
#include <vector>

#include "engine/cli/option_set.h"
#include "nvme/io_backend.h"

namespace spillway::engine {

/// What can be asked for by name.
[[nodiscard]] std::vector<std::string> backend_choices();

/// Declares `--io-backend`, as every verb that reads or writes a state folder has it.
void add_backend_option(OptionSet& options, std::string& into);

/// Of a name that the option accepts.
[[nodiscard]] nvme::BackendKind backend_kind(const std::string& name);

}  // namespace spillway::engine
