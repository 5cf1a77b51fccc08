// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/weights/share_gather.h"

#include <utility>

#include "cuda/communicator.h"

namespace spillway::offload::detail {
namespace {

class SharedMemoryGather final : public ShareGather {
  public:
    explicit SharedMemoryGather(const GroupContext& context)
        : communicators_(cuda::make_shared_memory_communicators(
              {.ranks = static_cast<unsigned>(context.members.size()),
               .patience_s = context.patience_s})) {}

    void gather(std::span<const GatherPart> parts, std::size_t share_bytes) override {
        for (std::size_t rank = 0; rank < parts.size(); ++rank)
            communicators_[rank]->all_gather(parts[rank].stream, parts[rank].share, parts[rank].all,
                                             share_bytes);
    }
    void leave() noexcept override { communicators_.clear(); }

  private:
    std::vector<std::unique_ptr<cuda::Communicator>> communicators_;
};

/// The copy engines do it: nothing of it takes a processor of a device from its kernels, and since
/// one thread queues all sides, none can be missing.
class PeerGather final : public ShareGather {
  public:
    explicit PeerGather(const GroupContext& context) : members_(context.members) {}

    void gather(std::span<const GatherPart> parts, std::size_t share_bytes) override {
        std::vector<cuda::Event> copied;
        for (std::size_t rank = 0; rank < parts.size(); ++rank)
            copied.push_back(copy_all(rank, parts, share_bytes));
        for (const auto& part : parts)
            for (const auto& event : copied)
                part.stream.wait(event);
    }

  private:
    cuda::Event copy_all(std::size_t rank, std::span<const GatherPart> parts,
                         std::size_t share_bytes) {
        const auto& own = parts[rank];
        // Each begins at another one, so that no device is asked by all at once.
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const auto from = (rank + i) % parts.size();
            auto* const to = own.all + from * share_bytes;
            if (parts[from].share == to)
                continue;
            own.stream.wait(parts[from].ready);
            own.stream.copy_from_peer(to, members_[from].device, parts[from].share, share_bytes);
        }
        return own.stream.record();
    }

    const std::vector<GroupMember>& members_;
};

}  // namespace

std::unique_ptr<ShareGather> make_share_gather(const GroupContext& context) {
    if (context.members.front().compute.kernels() != nullptr)
        return std::make_unique<PeerGather>(context);
    return std::make_unique<SharedMemoryGather>(context);
}

}  // namespace spillway::offload::detail
