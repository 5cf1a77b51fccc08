// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/drives/drive_files.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "nvme/huge_page_arena.h"

namespace spillway::offload::detail {
namespace {

constexpr std::size_t tried_operation_bytes = std::size_t{1} << 20;
constexpr std::size_t tried_bytes = std::size_t{16} << 20;
/// A share below which a first trial would cost more than it brings.
constexpr std::uint64_t least_tried_share_bytes = std::uint64_t{256} << 20;
/// One look may fall on a moment when a drive's cache is empty or full.
constexpr double weight_of_newest = 0.3;
/// Less says little about a drive.
constexpr std::uint64_t least_seen_bytes = std::uint64_t{32} << 20;

/// What each drive writes in a second, all at once, as they will be used.
std::vector<double> try_writes(std::vector<DriveFile>& drives) {
    const nvme::HugePageArena source(2 * tried_operation_bytes);
    std::vector<nvme::IoStatistics> before;
    for (auto& [queue, file] : drives) {
        file.preallocate(tried_bytes);
        before.push_back(queue->statistics());
    }
    PendingIo pending;
    for (std::size_t at = 0; at < tried_bytes; at += tried_operation_bytes) {
        for (auto& [queue, file] : drives)
            pending.add(queue->submit(nvme::IoRequest::make_write(
                file, at, source.bytes().first(tried_operation_bytes))));
    }
    pending.wait();
    std::vector<double> rates;
    for (std::size_t drive = 0; drive < drives.size(); ++drive) {
        const auto busy_s =
            drives[drive].queue->statistics().write_busy_s - before[drive].write_busy_s;
        rates.push_back(static_cast<double>(tried_bytes) / std::max(busy_s, 1e-6));
    }
    return rates;
}

}  // namespace

double seen_bytes_per_s(const nvme::IoStatistics& since, const nvme::IoStatistics& now) noexcept {
    const auto moved = static_cast<double>(now.read_bytes - since.read_bytes) +
                       static_cast<double>(now.written_bytes - since.written_bytes);
    const auto busy_s = now.read_busy_s - since.read_busy_s + now.write_busy_s - since.write_busy_s;
    return moved / std::max(busy_s, 1e-6);
}

RatesSeen::RatesSeen(const DriveQueues& queues) : queues_(&queues) {
    for (std::size_t drive = 0; drive < queues.size(); ++drive)
        before_.push_back(queues[drive].statistics());
}

std::vector<double> RatesSeen::operator()() {
    std::vector<nvme::IoStatistics> now;
    std::vector<double> rates;
    for (std::size_t drive = 0; drive < queues_->size(); ++drive) {
        now.push_back((*queues_)[drive].statistics());
        const auto& before = before_[drive];
        const auto moved = now.back().read_bytes - before.read_bytes + now.back().written_bytes -
                           before.written_bytes;
        if (moved < least_seen_bytes)
            return {};
        rates.push_back(seen_bytes_per_s(before, now.back()));
    }
    before_ = std::move(now);
    if (smooth_.empty())
        smooth_ = rates;
    for (std::size_t drive = 0; drive < rates.size(); ++drive)
        smooth_[drive] += (rates[drive] - smooth_[drive]) * weight_of_newest;
    return smooth_;
}

OpenDrives open_drives(const DriveQueues& queues, std::vector<nvme::DirectFile> files,
                       ExtentMap map) {
    OpenDrives open{{}, std::move(map)};
    bool fresh = true;
    for (std::size_t drive = 0; drive < files.size(); ++drive) {
        fresh = fresh && files[drive].size_bytes() == 0;
        open.files.push_back({&queues[drive], std::move(files[drive])});
    }
    std::vector<double> rates(open.files.size(), 1.0);
    open.map.assign(rates);
    if (fresh && rates.size() > 1 && open.map.file_bytes(0) >= least_tried_share_bytes)
        open.map.assign(try_writes(open.files));
    // What is there has its room, and may have been divided otherwise: the commit table knows.
    if (fresh || open.files.size() == 1) {
        for (std::size_t drive = 0; drive < open.files.size(); ++drive)
            open.files[drive].file.preallocate(open.map.file_bytes(drive));
    }
    return open;
}

std::vector<DriveFile> open_to_read(const StateFolder& folder, const DriveQueues& queues) {
    std::vector<DriveFile> drives;
    for (auto& file : folder.open_extents(nvme::OpenMode::open_read_only))
        drives.push_back({&queues[drives.size()], std::move(file)});
    return drives;
}

std::vector<DriveStatistics> drive_statistics(const DriveQueues& queues,
                                              std::span<const std::filesystem::path> folders,
                                              std::span<const std::uint64_t> shares) {
    std::vector<DriveStatistics> all;
    const auto whole = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
    for (std::size_t drive = 0; drive < folders.size(); ++drive) {
        const auto io = queues[drive].statistics();
        all.push_back({.folder = folders[drive],
                       .read_bytes = io.read_bytes,
                       .written_bytes = io.written_bytes,
                       .read_busy_s = io.read_busy_s,
                       .write_busy_s = io.write_busy_s,
                       .share = whole == 0 ? 1.0
                                           : static_cast<double>(shares[drive]) /
                                                 static_cast<double>(whole)});
    }
    return all;
}

}  // namespace spillway::offload::detail
