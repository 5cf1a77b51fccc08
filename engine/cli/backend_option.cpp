// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/backend_option.h"

#include <stdexcept>

namespace spillway::engine {

std::vector<std::string> backend_choices() {
    const auto names = nvme::backend_names();
    return {names.begin(), names.end()};
}

void add_backend_option(OptionSet& options, std::string& into) {
    options.add_choice({"io-backend", "NAME", "how files are read", "auto"}, backend_choices(),
                       into);
}

nvme::BackendKind backend_kind(const std::string& name) {
    if (const auto kind = nvme::backend_kind(name))
        return *kind;
    throw std::invalid_argument("\"" + name + "\" is no I/O backend");
}

}  // namespace spillway::engine
