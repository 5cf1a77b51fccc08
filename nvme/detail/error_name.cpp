// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/error_name.h"

#include <system_error>

#include <fmt/format.h>
#include <string.h>

namespace spillway::nvme::detail {

std::string error_name(int error) {
    const char* name = ::strerrorname_np(error);
    if (name == nullptr)
        return fmt::format("error {}", error);
    return fmt::format("{}: {}", name, std::generic_category().message(error));
}

}  // namespace spillway::nvme::detail
