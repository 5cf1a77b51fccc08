// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>
#include <string>

#include "cuda/communicator.h"
#include "cuda/nccl_api.h"

namespace spillway::cuda {

/// Where the ranks of a group meet: made by one of them and given to the others, on whatever way.
/// `library` by the rules of dlopen; empty for the system's. Throws NcclUnavailable,
/// CommunicationFailed.
[[nodiscard]] nccl::UniqueId make_nccl_id(const std::string& library = {});

struct NcclRank {
    nccl::UniqueId id{};
    unsigned rank = 0;
    unsigned ranks = 1;
    double patience_s = 60;    ///< for a rank that does not come
    std::string library = {};  ///< by the rules of dlopen; empty for the system's
};

/// One rank's side of a group whose devices are GPUs, over NCCL; `device` is a `cuda:N` of its own,
/// and so are the streams that its calls get. Every rank needs a thread of its own: this call, and
/// the first call of each kind, wait for the other ranks, for so long as patience lasts. Behind
/// each operation a function of the host looks whether it was cut short; what it finds is thrown by
/// whoever waits. Sums go round the ring that NCCL builds of the machine: one order for all ranks
/// and for every run on that machine. A group in which something went wrong is at its end.
///
/// Throws NcclUnavailable; std::invalid_argument for a rank that is none, or a device without
/// kernels of its own; CommunicationFailed where not all ranks come, or NCCL refuses. The device
/// must outlive it, and so must what it was given to do.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(const NcclRank& options,
                                                                   Device& device);

}  // namespace spillway::cuda
