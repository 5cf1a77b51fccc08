// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/backend_option.h"

#include <stdexcept>

namespace spillway::engine {

void add_backend_option(OptionSet& options, std::string& into) {
    options.add_choice({"io-backend", "NAME", "how files are read", "auto"},
                       {"auto", "io_uring", "libaio", "threads"}, into);
}

nvme::BackendKind backend_kind(const std::string& name) {
    if (name == "auto")
        return nvme::BackendKind::automatic;
    if (name == "io_uring")
        return nvme::BackendKind::io_uring;
    if (name == "libaio")
        return nvme::BackendKind::libaio;
    if (name == "threads")
        return nvme::BackendKind::threads;
    throw std::invalid_argument("\"" + name + "\" is no I/O backend");
}

}  // namespace spillway::engine
