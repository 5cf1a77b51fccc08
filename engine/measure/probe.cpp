// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/probe.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "engine/compute/compute_pool.h"
#include "engine/measure/drive_choice.h"
#include "engine/measure/drive_probe.h"
#include "engine/measure/median.h"
#include "engine/measure/memory_pass.h"
#include "nvme/huge_page_arena.h"

namespace spillway::engine {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t least_memory_bytes = std::size_t{4} << 20;
/// In flight on a drive at a time: about what the planes of a pipeline's slots take.
constexpr std::size_t drive_buffer_bytes = std::size_t{32} << 20;
constexpr std::size_t first_link_bytes = std::size_t{64} << 10;
constexpr std::size_t link_buffer_bytes = std::size_t{16} << 20;

/// Shares of the time limit.
constexpr double drive_share = 0.75;
constexpr double dram_share = 0.15;
constexpr double link_share = 0.05;  // each way

double probe_dram(ComputePool& pool, std::span<std::byte> memory, double limit_s) {
    std::size_t moved_bytes = 0;
    const auto pass_s =
        median_pass_s(limit_s, 1, [&] { moved_bytes = change_in_place(pool, memory); });
    return static_cast<double>(moved_bytes) / pass_s;
}

/// Rates each way of a device with memory of its own; a link of a known rate is not measured. The
/// memory is page-locked meanwhile, as what a run copies is.
void probe_link(cuda::Device& device, std::span<std::byte> memory, double limit_s,
                MachineProfile& profile) {
    if (device.memory_kind() == cuda::MemoryKind::host)
        return;
    if (device.link_bytes_per_s() > 0) {
        profile.to_device_bytes_per_s = device.link_bytes_per_s();
        profile.to_host_bytes_per_s = device.link_bytes_per_s();
        return;
    }
    const auto most = std::min({memory.size(), link_buffer_bytes, device.free_bytes() / 2});
    const auto whole_pages = (most + nvme::HugePageArena::page_bytes - 1) /
                             nvme::HugePageArena::page_bytes * nvme::HugePageArena::page_bytes;
    try {
        const auto page_locked = device.register_host(memory.data(), whole_pages);
        const auto buffer = device.allocate(most);
        const auto stream = device.create_stream("probe");
        const auto rate = [&](const auto& copy) {
            const auto pass = [&](std::size_t bytes) {
                const auto start = Clock::now();
                copy(bytes);
                stream->synchronize();
                return std::chrono::duration<double>(Clock::now() - start).count();
            };
            // No larger than a slow link moves in its time.
            auto bytes = std::min(first_link_bytes, most);
            while (pass(bytes) < limit_s / 8 && bytes < most)
                bytes = std::min(2 * bytes, most);
            return static_cast<double>(bytes) / median_pass_s(limit_s, 1, [&] { pass(bytes); });
        };
        profile.to_device_bytes_per_s = rate([&](std::size_t bytes) {
            stream->copy_to_device(buffer.data(), memory.data(), bytes);
        });
        profile.to_host_bytes_per_s = rate(
            [&](std::size_t bytes) { stream->copy_to_host(memory.data(), buffer.data(), bytes); });
    } catch (const cuda::OutOfDeviceMemory& error) {
        profile.notes.push_back(fmt::format("the link was not measured: {}", error.what()));
    } catch (const cuda::DriverError& error) {
        profile.notes.push_back(fmt::format("the link was not measured: {}", error.what()));
    }
}

struct ProbedDrive {
    std::filesystem::path folder;
    std::string file_system;
    offload::DriveIo io;
};

/// One folder for each file system: two on one of them give no more than one.
std::vector<ProbedDrive> distinct_drives(const ProbeRequest& request) {
    std::vector<ProbedDrive> distinct;
    std::set<std::string> seen;
    for (std::size_t drive = 0; drive < request.nvme_folders.size(); ++drive) {
        const auto& folder = request.nvme_folders[drive];
        auto file_system = file_system_identity(folder);
        const auto io =
            drive < request.drive_io.size() ? request.drive_io[drive] : offload::DriveIo{};
        if (seen.insert(file_system).second)
            distinct.push_back({folder, std::move(file_system), io});
    }
    return distinct;
}

std::string joined(const std::vector<std::string>& texts) {
    return fmt::format("{}", fmt::join(texts, " + "));
}

/// What the drives give together; nothing if one of them cannot be measured.
void probe_drives(const ProbeRequest& request, std::span<std::byte> buffers,
                  MachineProfile& profile) {
    const auto drives = distinct_drives(request);
    if (drives.size() < request.nvme_folders.size())
        profile.notes.push_back(
            fmt::format("{} --nvme folders lie on {} file system{}: those on one share its rate",
                        request.nvme_folders.size(), drives.size(), drives.size() == 1 ? "" : "s"));
    const auto limit_s = request.time_limit_s * drive_share /
                         static_cast<double>(std::max<std::size_t>(drives.size(), 1));
    std::optional<DriveRates> sum;
    bool whole = true;
    for (const auto& probed : drives) {
        auto drive = probe_drive({probed.folder, probed.io, buffers, limit_s});
        profile.notes.insert(profile.notes.end(), drive.notes.begin(), drive.notes.end());
        whole = whole && drive.rates.has_value();
        if (!drive.rates)
            continue;
        sum = DriveRates{(sum ? sum->read_bytes_per_s : 0) + drive.rates->read_bytes_per_s,
                         (sum ? sum->write_bytes_per_s : 0) + drive.rates->write_bytes_per_s,
                         (sum ? sum->mixed_bytes_per_s : 0) + drive.rates->mixed_bytes_per_s};
    }
    if (whole)
        profile.drive = sum;
}

void note_cache(std::size_t memory_bytes, MachineProfile& profile) {
    const auto cache_bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache_bytes > 0 && memory_bytes < 2 * static_cast<std::size_t>(cache_bytes))
        profile.notes.push_back(
            fmt::format("memory was measured on {} bytes, which the cache of {} bytes may hold: "
                        "it may be slower",
                        memory_bytes, cache_bytes));
}

}  // namespace

ProfileKey profile_key(const ProbeRequest& request) {
    std::vector<std::string> file_systems;
    std::vector<std::string> io;
    for (const auto& drive : distinct_drives(request)) {
        file_systems.push_back(drive.file_system);
        io.push_back(drive_io_text(drive.io));
    }
    return {cpu_model_name(),
            std::string(cpu_optim::isa_name(request.isa)),
            request.threads,
            request.device.identity(),
            joined(file_systems),
            joined(io),
            std::bit_floor(request.memory_bytes)};
}

MachineProfile probe_machine(const ProbeRequest& request) {
    if (request.memory_bytes < least_memory_bytes)
        throw std::invalid_argument(
            fmt::format("measuring the machine needs {} bytes of memory, not {}",
                        least_memory_bytes, request.memory_bytes));
    MachineProfile profile;
    profile.key = profile_key(request);
    profile.measured_unix_s = static_cast<std::int64_t>(std::time(nullptr));
    const auto arena_bytes =
        request.memory_bytes - request.memory_bytes % nvme::HugePageArena::page_bytes;
    const nvme::HugePageArena arena(arena_bytes);
    const double limit_s = request.time_limit_s;
    probe_drives(request, arena.bytes().first(std::min(arena_bytes, drive_buffer_bytes)), profile);
    note_cache(arena_bytes, profile);
    ComputePool pool(request.threads, request.isa);
    profile.dram_bytes_per_s = probe_dram(pool, arena.bytes(), limit_s * dram_share);
    probe_link(request.device, arena.bytes(), limit_s * link_share, profile);
    return profile;
}

MachineProfile recall_or_probe(const ProbeRequest& request, const std::filesystem::path& path,
                               double max_age_s) {
    if (path.empty())
        return probe_machine(request);
    auto stored = load_profiles(path);
    const auto* recent = find_profile(stored.profiles, profile_key(request),
                                      static_cast<std::int64_t>(std::time(nullptr)),
                                      static_cast<std::int64_t>(max_age_s));
    if (recent != nullptr)
        return *recent;
    auto profile = probe_machine(request);
    try {
        if (stored.file != ProfileFile::foreign)
            store_profile(path, profile);
    } catch (const std::system_error& error) {
        profile.notes.push_back(fmt::format("the profile was not stored: {}", error.what()));
    }
    if (!stored.note.empty())
        profile.notes.push_back(stored.note);
    return profile;
}

}  // namespace spillway::engine
