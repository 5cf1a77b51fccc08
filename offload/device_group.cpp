// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/device_group.h"

#include <exception>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "offload/detail/gradients/gradient_chain.h"
#include "offload/detail/weights/gathered_weights.h"
#include "offload/detail/weights/pass_ends.h"

namespace spillway::offload {
namespace {

std::vector<detail::UnitShare> shares_of(const ElementOrder& order, std::span<const Unit> units,
                                         unsigned ranks) {
    std::vector<detail::UnitShare> shares;
    for (const auto& unit : units)
        shares.emplace_back(order, unit, ranks);
    return shares;
}

std::vector<GroupMember> checked(std::vector<GroupMember> members, unsigned ranks) {
    if (members.size() != ranks || ranks == 0)
        throw std::invalid_argument(
            fmt::format("a group of {} devices is planned for {} ranks", members.size(), ranks));
    for (const auto& member : members)
        if (member.device.memory_kind() != cuda::MemoryKind::device ||
            (member.compute.kernels() == nullptr) != (members.front().compute.kernels() == nullptr))
            throw std::invalid_argument(fmt::format(
                "a group of devices: {} cannot be in one with {}; take GPUs, or simulated devices",
                member.device.name(), members.front().device.name()));
    return members;
}

}  // namespace

class DeviceGroup::Impl {
  public:
    Impl(OffloadEngine& engine, const ElementOrder& order, std::span<const Unit> units,
         const GroupPlan& plan, std::vector<GroupMember> members, const GroupOptions& options)
        : plan_(plan),
          members_(checked(std::move(members), plan.ranks)),
          shares_(shares_of(order, units, plan.ranks)),
          context_{monitor_, engine, plan_, shares_, members_, options.patience_s},
          weights_(context_),
          gradients_(context_),
          ends_(context_) {}

    /// What the compute streams still have to do uses the group's memory.
    ~Impl() {
        for (const auto& member : members_) {
            try {
                member.compute.synchronize();
            } catch (...) {
                // The failure has been thrown by the pass in which it happened.
                monitor_.poison(std::current_exception());
            }
        }
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    void begin_pass(std::span<const std::size_t> uses, WeightKind kind) {
        monitor_.throw_if_poisoned();
        weights_.begin_pass(uses, kind);
        gradients_.begin_pass();
    }

    void run_pass(const std::function<void(unsigned)>& work) {
        monitor_.throw_if_poisoned();
        std::thread bringing([this] { poisoning([this] { weights_.bring_all(); }); });
        std::vector<std::thread> ranks;
        for (unsigned rank = 0; rank < members_.size(); ++rank)
            ranks.emplace_back([this, rank, &work] { poisoning([&] { run_rank(rank, work); }); });
        poisoning([this] { gradients_.hand_over_all(); });
        bringing.join();
        {
            const auto lock = monitor_.lock();
            if (monitor_.poisoned(lock))
                weights_.leave();
        }
        for (auto& rank : ranks)
            rank.join();
        monitor_.throw_if_poisoned();
        ends_.pass_ended();
    }

    detail::GatheredWeights& weights() noexcept { return weights_; }
    detail::GradientChain& gradients() noexcept { return gradients_; }

  private:
    template <typename Body>
    void poisoning(const Body& body) {
        try {
            body();
        } catch (...) {
            monitor_.poison(std::current_exception());
        }
    }

    void run_rank(unsigned rank, const std::function<void(unsigned)>& work) {
        try {
            work(rank);
            weights_.require_all_acquired(rank);
        } catch (const std::exception& error) {
            throw context_.failed(rank, error.what());
        }
        gradients_.ended(rank);
        ends_.rank_ended(rank);
    }

    const GroupPlan plan_;
    const std::vector<GroupMember> members_;
    const std::vector<detail::UnitShare> shares_;
    detail::Monitor monitor_;
    detail::GroupContext context_;
    detail::GatheredWeights weights_;
    detail::GradientChain gradients_;
    detail::PassEnds ends_;
};

DeviceGroup::DeviceGroup(OffloadEngine& engine, const ElementOrder& order,
                         std::span<const Unit> units, const GroupPlan& plan,
                         std::vector<GroupMember> members, const GroupOptions& options)
    : impl_(std::make_unique<Impl>(engine, order, units, plan, std::move(members), options)) {}
DeviceGroup::~DeviceGroup() = default;

void DeviceGroup::begin_pass(std::span<const std::size_t> uses, WeightKind kind) {
    impl_->begin_pass(uses, kind);
}
void DeviceGroup::run_pass(const std::function<void(unsigned)>& work) {
    impl_->run_pass(work);
}
const float* DeviceGroup::acquire_weights(unsigned rank, std::size_t unit) {
    return impl_->weights().acquire(rank, unit);
}
void DeviceGroup::release_weights(unsigned rank, std::size_t unit) {
    impl_->weights().release(rank, unit);
}
float* DeviceGroup::acquire_gradient(unsigned rank, std::size_t unit) {
    return impl_->gradients().acquire(rank, unit);
}
void DeviceGroup::release_gradient(unsigned rank, std::size_t unit) {
    impl_->gradients().release(rank, unit);
}

}  // namespace spillway::offload
