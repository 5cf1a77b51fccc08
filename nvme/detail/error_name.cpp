// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/detail/error_name.h"

#include <fmt/format.h>
#include <string.h>

namespace spillway::nvme::detail {

std::string error_name(int error) {
    const char* name = ::strerrorname_np(error);
    if (name == nullptr)
        return fmt::format("error {}", error);
    return fmt::format("{}: {}", name, std::generic_category().message(error));
}

std::string refusal_text(const std::system_error& error) {
    const std::string text = error.what();
    // what() ends in the code's message, which error_name gives with the errno's name.
    const std::string call = text.substr(0, text.rfind(": "));
    return fmt::format("{} ({})", error_name(error.code().value()), call);
}

}  // namespace spillway::nvme::detail
