// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/communicator.h"

#include <fmt/format.h>

namespace spillway::cuda {

void Communicator::check_root(unsigned root) const {
    if (root >= ranks())
        throw std::invalid_argument(
            fmt::format("broadcast from rank {}: there are {} ranks, from 0", root, ranks()));
}

}  // namespace spillway::cuda
