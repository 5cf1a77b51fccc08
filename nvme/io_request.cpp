// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/io_request.h"

namespace spillway::nvme {

void IoResult::throw_if_error() const {
    if (error)
        throw std::system_error(error, context);
}

}  // namespace spillway::nvme
