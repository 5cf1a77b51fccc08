// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "offload/detail/weights/group_context.h"

namespace spillway::offload::detail {

/// One rank's side of a gather.
struct GatherPart {
    cuda::Stream& stream;
    const std::byte* share;  ///< perhaps its own place in `all`
    std::byte* all;
    cuda::Event ready;  ///< the share is there; of the stream's own device
};

/// Puts units together of the shares of all ranks. Called by one thread.
class ShareGather {
  public:
    virtual ~ShareGather() = default;
    /// Queues it on each rank's stream, whose order it keeps; by rank. Work behind it comes when
    /// that rank has the whole, and all others have this rank's share.
    virtual void gather(std::span<const GatherPart> parts, std::size_t share_bytes) = 0;
    /// What ranks still wait for fails.
    virtual void leave() noexcept {}
};

/// By the devices' copies from each other where they are GPUs; else by a communicator in shared
/// memory, in which a rank that does not come is told by the others.
[[nodiscard]] std::unique_ptr<ShareGather> make_share_gather(const GroupContext& context);

}  // namespace spillway::offload::detail
