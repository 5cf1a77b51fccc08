// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// The few calls of NCCL. Ranks are stricter than the real ones: a group is not there before all of
// its ranks are, a rank's first operation reaches its stream only while the caller asks how it
// goes, ranks that do different things wait for ever, and sums begin at another rank for each
// share, as on a ring.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cuda/nccl_api.h"
#include "tests/support/cuda_standin/driver_calls.h"

namespace spillway::standin {
namespace {

namespace nccl = cuda::nccl;
using Access = OrderChecker::Access;

/// One rank's side of one operation.
struct Part {
    const char* function = "";
    int root = 0;
    std::uintptr_t from = 0, to = 0;
    std::size_t from_bytes = 0, to_bytes = 0;
};

bool together(const Part& a, const Part& b) {
    return std::strcmp(a.function, b.function) == 0 && a.root == b.root &&
           a.from_bytes == b.from_bytes && a.to_bytes == b.to_bytes;
}

struct Meeting {
    std::map<int, Part> parts;  ///< by rank
    std::size_t done = 0;
};

struct Group {
    std::size_t ranks = 0;
    std::map<int, int> devices;  ///< by rank
    std::map<std::uint64_t, Meeting> meetings;

    [[nodiscard]] bool complete() const { return devices.size() == ranks; }
};

struct Rank {
    std::shared_ptr<Group> group;
    int rank = 0, device = 0;
    nccl::Result error = nccl::success;
    bool ended = false;  ///< aborted or destroyed
    std::uint64_t calls = 0;
    std::size_t in_flight = 0;
    std::function<void()> held_back;  ///< the first operation
};

/// Guarded by the look-alike's lock; ranks are never freed, so that use after their end is seen.
struct Ranks {
    std::uint64_t ids = 0;
    std::map<std::uint64_t, std::shared_ptr<Group>> groups;  ///< by id
    std::vector<std::unique_ptr<Rank>> all;
};
Ranks& ranks() {
    static auto* const the_ranks = new Ranks;
    return *the_ranks;
}

Rank* rank_of(StandinState& s, nccl::CommunicatorHandle handle, const char* function) {
    auto* const rank = reinterpret_cast<Rank*>(handle);
    const auto& all = ranks().all;
    const bool exists =
        std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.get() == rank; });
    if (exists && !rank->ended)
        return rank;
    s.report(fmt::format("{} of a communicator that was never made or has ended", function));
    return nullptr;
}

// ---------------------------------------------------------------- what streams execute

using Places = std::map<int, std::pair<DeviceMemory::Place, DeviceMemory::Place>>;

/// Where each rank's memory is; empty where some of it is not.
Places places_of(const Meeting& meeting) {
    Places places;
    for (const auto& [rank, part] : meeting.parts) {
        auto& [from, to] = places[rank];
        from = find_device_memory(part.from, part.from_bytes);
        to = find_device_memory(part.to, part.to_bytes);
        if (from.data == nullptr || to.data == nullptr)
            return {};
    }
    return places;
}

/// The sum of element i over ranks, from that behind `last` on round to it.
float sum_to(const Places& places, int last, std::size_t i) {
    const int count = static_cast<int>(places.size());
    float sum = 0;
    for (int n = 1; n <= count; ++n) {
        float value = 0;
        std::memcpy(&value, places.at((last + n) % count).first.data + i * sizeof(float),
                    sizeof(value));
        sum = n == 1 ? value : sum + value;
    }
    return sum;
}

void do_part(const Meeting& meeting, const Places& places, int rank) {
    const Part& part = meeting.parts.at(rank);
    const auto& [own_from, own_to] = places.at(rank);
    const auto count = static_cast<int>(places.size());
    const std::string_view function = part.function;
    if (function == "ncclBroadcast") {
        if (rank != part.root)
            std::memcpy(own_to.data, places.at(part.root).first.data, part.to_bytes);
    } else if (function == "ncclAllGather") {
        for (const auto& [other, place] : places) {
            auto* const to = own_to.data + static_cast<std::size_t>(other) * part.from_bytes;
            // Its own share in its place: the others are reading that.
            if (to != place.first.data)
                std::memcpy(to, place.first.data, part.from_bytes);
        }
    } else if (function == "ncclReduceScatter") {
        const auto elements = part.to_bytes / sizeof(float);
        for (std::size_t i = 0; i < elements; ++i) {
            const float sum = sum_to(places, rank, static_cast<std::size_t>(rank) * elements + i);
            std::memcpy(own_to.data + i * sizeof(float), &sum, sizeof(sum));
        }
    } else {
        // A part of the elements, given to all.
        const auto elements = part.to_bytes / sizeof(float);
        const auto own = static_cast<std::size_t>(rank);
        const auto all = static_cast<std::size_t>(count);
        for (std::size_t i = elements * own / all; i < elements * (own + 1) / all; ++i) {
            const float sum = sum_to(places, rank, i);
            for (const auto& [other, place] : places)
                std::memcpy(place.second.data + i * sizeof(float), &sum, sizeof(sum));
        }
    }
}

/// Waits with the lock; false where the rank has ended before.
template <typename Condition>
bool wait_for(Lock& lock, const Rank& rank, const Condition& condition) {
    state().changed.wait(lock, [&] { return rank.ended || condition(); });
    return !rank.ended;
}

/// On the stream's thread.
void meet(Rank& rank, std::uint64_t number, const Part& part) {
    auto& s = state();
    Lock lock(s.mutex);
    const auto group = rank.group;
    const auto fault = s.stream_faults.find(part.function);
    if (fault != s.stream_faults.end() && --fault->second.left <= 0) {
        rank.error = fault->second.result;
        s.stream_faults.erase(fault);
    }
    auto& meeting = group->meetings[number];
    const bool fits = meeting.parts.empty() || together(meeting.parts.begin()->second, part);
    if (!fits)
        s.report(fmt::format("ranks do different things together: {} of {} bytes and {} of {}",
                             meeting.parts.begin()->second.function,
                             meeting.parts.begin()->second.to_bytes, part.function, part.to_bytes));
    if (fits && rank.error == nccl::success)
        meeting.parts.emplace(rank.rank, part);
    s.changed.notify_all();
    if (!wait_for(lock, rank, [&] { return meeting.parts.size() == group->ranks; }))
        return;
    lock.unlock();
    const auto places = places_of(meeting);
    if (!places.empty())
        do_part(meeting, places, rank.rank);
    lock.lock();
    ++meeting.done;
    s.changed.notify_all();
    static_cast<void>(wait_for(lock, rank, [&] { return meeting.done == group->ranks; }));
}

// ---------------------------------------------------------------- what the host queues

nccl::Result queue_part(const Part& part, nccl::CommunicatorHandle handle,
                        driver::StreamHandle stream_handle) {
    return call(part.function, Needs::context, [&](StandinState& s, Lock&) {
        auto* const rank = rank_of(s, handle, part.function);
        auto* const stream = stream_of(stream_handle);
        if (rank == nullptr || stream == nullptr || stream->device != rank->device)
            return nccl::invalid_argument;
        if (!rank->group->complete() || rank->held_back) {
            s.report(fmt::format("{} while a call before it is still in progress", part.function));
            return nccl::invalid_usage;
        }
        const auto number = rank->calls++;
        ++rank->in_flight;
        auto put = [rank, stream, number, part] {
            auto& now = state();
            now.report(now.order.operation(
                stream->actor, fmt::format("{} on stream {}", part.function, stream->actor),
                {{part.from, part.from + part.from_bytes, Access::reads},
                 {part.to, part.to + part.to_bytes, Access::writes}}));
            queue_on(*stream, [rank, number, part] {
                meet(*rank, number, part);
                const std::scoped_lock lock(state().mutex);
                --rank->in_flight;
            });
        };
        if (number != 0) {
            put();
            return nccl::success;
        }
        rank->held_back = put;
        return nccl::in_progress;
    });
}

std::size_t bytes_of(std::size_t count, int type) {
    return count * (type == nccl::float32 ? sizeof(float) : 1);
}

nccl::Result end(const char* function, nccl::CommunicatorHandle handle, bool in_flight_allowed) {
    return call(function, Needs::context, [&](StandinState& s, Lock&) {
        auto* const rank = rank_of(s, handle, function);
        if (rank == nullptr)
            return nccl::invalid_argument;
        if (rank->in_flight != 0 && !in_flight_allowed)
            s.report(
                fmt::format("{} while {} operations are in flight", function, rank->in_flight));
        rank->ended = true;
        s.changed.notify_all();
        return nccl::success;
    });
}

}  // namespace

SPILLWAY_STANDIN_EXPORT int ncclGetVersion(int* version) {
    *version = 22809;
    return nccl::success;
}

SPILLWAY_STANDIN_EXPORT const char* ncclGetErrorString(nccl::Result result) {
    switch (result) {
        case nccl::success:
            return "no error";
        case nccl::unhandled_cuda_error:
            return "unhandled cuda error";
        case nccl::system_error:
            return "unhandled system error";
        case nccl::invalid_argument:
            return "invalid argument";
        case nccl::invalid_usage:
            return "invalid usage";
        case nccl::remote_error:
            return "remote process exited or there was a network error";
        default:
            return "unknown result code";
    }
}

SPILLWAY_STANDIN_EXPORT const char* ncclGetLastError(nccl::CommunicatorHandle) {
    return "said last";
}

SPILLWAY_STANDIN_EXPORT nccl::Result ncclGetUniqueId(nccl::UniqueId* id) {
    return call("ncclGetUniqueId", Needs::nothing, [&](StandinState&, Lock&) {
        id->bytes = {};
        const auto number = ++ranks().ids;
        std::memcpy(id->bytes.data(), &number, sizeof(number));
        return nccl::success;
    });
}

SPILLWAY_STANDIN_EXPORT nccl::Result ncclCommInitRankConfig(nccl::CommunicatorHandle* handle,
                                                            int count, nccl::UniqueId id,
                                                            int number, nccl::Config* config) {
    return call("ncclCommInitRankConfig", Needs::context, [&](StandinState& s, Lock&) {
        if (config->size < sizeof(nccl::Config) || config->magic != 0xCAFEBEEF || number < 0 ||
            number >= count)
            return nccl::invalid_argument;
        if (config->blocking != 0)
            s.report("ncclCommInitRankConfig may wait for ever for a rank that does not come");
        std::uint64_t key = 0;
        std::memcpy(&key, id.bytes.data(), sizeof(key));
        auto& group = ranks().groups[key];
        if (group == nullptr)
            group = std::make_shared<Group>();
        group->ranks = static_cast<std::size_t>(count);
        auto& rank = *ranks().all.emplace_back(std::make_unique<Rank>());
        rank.group = group;
        rank.rank = number;
        rank.device = current_device();
        for (const auto& [other, device] : group->devices)
            if (device == rank.device)
                rank.error = nccl::invalid_usage;
        group->devices.emplace(number, rank.device);
        *handle = reinterpret_cast<nccl::CommunicatorHandle>(&rank);
        return nccl::in_progress;
    });
}

SPILLWAY_STANDIN_EXPORT nccl::Result ncclCommGetAsyncError(nccl::CommunicatorHandle handle,
                                                           nccl::Result* result) {
    return call("ncclCommGetAsyncError", Needs::nothing, [&](StandinState& s, Lock&) {
        auto* const rank = rank_of(s, handle, "ncclCommGetAsyncError");
        if (rank == nullptr)
            return nccl::invalid_argument;
        *result = rank->error;
        if (rank->error != nccl::success)
            return nccl::success;
        if (!rank->group->complete())
            *result = nccl::in_progress;
        if (rank->held_back) {
            *result = nccl::in_progress;
            std::exchange(rank->held_back, nullptr)();
        }
        return nccl::success;
    });
}

SPILLWAY_STANDIN_EXPORT nccl::Result ncclCommAbort(nccl::CommunicatorHandle handle) {
    return end("ncclCommAbort", handle, true);
}
SPILLWAY_STANDIN_EXPORT nccl::Result ncclCommDestroy(nccl::CommunicatorHandle handle) {
    return end("ncclCommDestroy", handle, false);
}

SPILLWAY_STANDIN_EXPORT nccl::Result ncclAllGather(const void* from, void* to, std::size_t count,
                                                   int type, nccl::CommunicatorHandle handle,
                                                   driver::StreamHandle stream) {
    auto* const rank = reinterpret_cast<Rank*>(handle);
    const auto bytes = bytes_of(count, type);
    return queue_part(
        {"ncclAllGather", 0, address_of(from), address_of(to), bytes, bytes * rank->group->ranks},
        handle, stream);
}
SPILLWAY_STANDIN_EXPORT nccl::Result ncclReduceScatter(const void* from, void* to,
                                                       std::size_t count, int type, int,
                                                       nccl::CommunicatorHandle handle,
                                                       driver::StreamHandle stream) {
    auto* const rank = reinterpret_cast<Rank*>(handle);
    const auto bytes = bytes_of(count, type);
    return queue_part({"ncclReduceScatter", 0, address_of(from), address_of(to),
                       bytes * rank->group->ranks, bytes},
                      handle, stream);
}
SPILLWAY_STANDIN_EXPORT nccl::Result ncclAllReduce(const void* from, void* to, std::size_t count,
                                                   int type, int, nccl::CommunicatorHandle handle,
                                                   driver::StreamHandle stream) {
    const auto bytes = bytes_of(count, type);
    return queue_part({"ncclAllReduce", 0, address_of(from), address_of(to), bytes, bytes}, handle,
                      stream);
}
SPILLWAY_STANDIN_EXPORT nccl::Result ncclBroadcast(const void* from, void* to, std::size_t count,
                                                   int type, int root,
                                                   nccl::CommunicatorHandle handle,
                                                   driver::StreamHandle stream) {
    const auto bytes = bytes_of(count, type);
    return queue_part({"ncclBroadcast", root, address_of(from), address_of(to), bytes, bytes},
                      handle, stream);
}

}  // namespace spillway::standin
