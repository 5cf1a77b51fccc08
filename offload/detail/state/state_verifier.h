// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "nvme/completion_signal.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/state_reader.h"

namespace spillway::offload::detail {

/// Reads every tile of every stored plane and checks it, at the speed of all drives together, in a
/// few MiB. `io_ended`: of the store's queues. Throws std::system_error naming path and offset
/// where a drive gives nothing.
[[nodiscard]] VerifyReport verify_store(TileStore& store, const nvme::CompletionSignal& io_ended);

}  // namespace spillway::offload::detail
