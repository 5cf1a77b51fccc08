// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace spillway::standin {

/// Which work is known to come before which, by vector clocks (Mattern 1989): the host and each
/// stream count their own operations and know how far they come behind each other. Two uses of
/// memory of which one writes, neither known to come before the other, are a race, whatever the
/// times at which they happened to execute. Not thread-safe.
class OrderChecker {
  public:
    using Actor = std::uint64_t;
    static constexpr Actor host = 0;
    using Clock = std::map<Actor, std::uint64_t>;

    enum class Access { reads, writes };
    struct Use {
        std::uintptr_t begin, end;
        Access access;
    };

    /// The host queues an operation on `stream`, which so comes behind all that the host knows.
    /// Returns the races of its uses with uses before, in words; `what` names the operation.
    [[nodiscard]] std::vector<std::string> operation(Actor stream, const std::string& what,
                                                     const std::vector<Use>& uses);
    /// What `stream` knows now: the clock of an event.
    [[nodiscard]] Clock knowledge(Actor stream) const;
    /// `actor` waits for that.
    void learn(Actor actor, const Clock& clock);

    /// Uses of this memory that the host does not know to be over.
    [[nodiscard]] std::vector<std::string> unfinished(std::uintptr_t begin,
                                                      std::uintptr_t end) const;
    /// No use of this memory matters any more.
    void forget(std::uintptr_t begin, std::uintptr_t end);

  private:
    struct PastUse {
        Use use;
        Actor actor;
        std::uint64_t count;
        std::string what;
    };
    [[nodiscard]] static bool knows(const Clock& clock, const PastUse& past);
    void forget_what_the_host_knows();

    std::map<Actor, Clock> clocks_;
    std::vector<PastUse> uses_;
};

}  // namespace spillway::standin
