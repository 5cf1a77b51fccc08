// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/cuda_standin/order_checker.h"

#include <algorithm>

#include <fmt/format.h>

namespace spillway::standin {
namespace {

bool overlap(const OrderChecker::Use& use, std::uintptr_t begin, std::uintptr_t end) {
    return use.begin < end && begin < use.end;
}

bool conflict(const OrderChecker::Use& a, const OrderChecker::Use& b) {
    return overlap(a, b.begin, b.end) &&
           (a.access == OrderChecker::Access::writes || b.access == OrderChecker::Access::writes);
}

std::string_view verb(OrderChecker::Access access) {
    return access == OrderChecker::Access::writes ? "writes" : "reads";
}

}  // namespace

bool OrderChecker::knows(const Clock& clock, const PastUse& past) {
    const auto found = clock.find(past.actor);
    return found != clock.end() && found->second >= past.count;
}

std::vector<std::string> OrderChecker::operation(Actor stream, const std::string& what,
                                                 const std::vector<Use>& uses) {
    if (stream != host)
        learn(stream, clocks_[host]);
    Clock& clock = clocks_[stream];
    std::vector<std::string> races;
    for (const Use& use : uses)
        for (const PastUse& past : uses_)
            if (conflict(use, past.use) && !knows(clock, past))
                races.push_back(fmt::format("{} {} memory that {} {}: nothing orders them", what,
                                            verb(use.access), past.what, verb(past.use.access)));
    const auto count = ++clock[stream];
    // What comes later and knows this operation knows all that this one knows.
    for (const Use& use : uses) {
        std::erase_if(uses_, [&](const PastUse& past) {
            const bool inside = past.use.begin >= use.begin && past.use.end <= use.end;
            return inside && knows(clock, past) &&
                   (use.access == Access::writes || past.use.access == Access::reads);
        });
        if (stream != host)
            uses_.push_back({use, stream, count, what});
    }
    return races;
}

OrderChecker::Clock OrderChecker::knowledge(Actor stream) const {
    const auto found = clocks_.find(stream);
    return found == clocks_.end() ? Clock() : found->second;
}

void OrderChecker::learn(Actor actor, const Clock& clock) {
    Clock& own = clocks_[actor];
    for (const auto& [other, count] : clock)
        own[other] = std::max(own[other], count);
    if (actor == host)
        forget_what_the_host_knows();
}

void OrderChecker::forget_what_the_host_knows() {
    // All work queued from here on comes behind the host.
    std::erase_if(uses_, [&](const PastUse& past) { return knows(clocks_[host], past); });
}

std::vector<std::string> OrderChecker::unfinished(std::uintptr_t begin, std::uintptr_t end) const {
    std::vector<std::string> found;
    for (const PastUse& past : uses_)
        if (overlap(past.use, begin, end))
            found.push_back(fmt::format("{} {} it", past.what, verb(past.use.access)));
    return found;
}

void OrderChecker::forget(std::uintptr_t begin, std::uintptr_t end) {
    std::erase_if(
        uses_, [&](const PastUse& past) { return past.use.begin >= begin && past.use.end <= end; });
}

}  // namespace spillway::standin
