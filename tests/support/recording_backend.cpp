// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/recording_backend.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spillway::testing {

namespace {

constexpr std::uint64_t block_bytes = 4096;
constexpr std::size_t sector_bytes = 512;

[[noreturn]] void fail(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

/// SplitMix64: well mixed from consecutive numbers.
std::uint64_t mix(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15U;
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
    return value ^ (value >> 31U);
}

void pwrite_all(int descriptor, const std::byte* data, std::size_t length, std::uint64_t offset,
                const std::filesystem::path& path) {
    while (length != 0) {
        const ssize_t moved = ::pwrite(descriptor, data, length, static_cast<off_t>(offset));
        if (moved <= 0)
            fail("pwrite " + path.string());
        data += moved;
        offset += static_cast<std::uint64_t>(moved);
        length -= static_cast<std::size_t>(moved);
    }
}

/// Reads what the real file has of the range; the rest is zeros.
void pread_or_zero(int descriptor, std::byte* data, std::size_t length, std::uint64_t offset) {
    while (length != 0) {
        const ssize_t moved = ::pread(descriptor, data, length, static_cast<off_t>(offset));
        if (moved < 0)
            fail("pread");
        if (moved == 0)
            break;
        data += moved;
        offset += static_cast<std::uint64_t>(moved);
        length -= static_cast<std::size_t>(moved);
    }
    std::memset(data, 0, length);
}

bool sector_arrives(const RecordedOperation& write, WriteFate fate, std::size_t sector,
                    std::size_t sectors) {
    // At least one sector of a torn write is missing; at least one arrives where it has several.
    const std::size_t arrived = sectors < 2 ? 0 : 1 + mix(write.index) % (sectors - 1);
    switch (fate) {
        case WriteFate::keep:
            return true;
        case WriteFate::drop:
            return false;
        case WriteFate::keep_head:
            return sector < arrived;
        case WriteFate::keep_tail:
            return sector >= sectors - arrived;
        case WriteFate::scatter:
            return (mix(mix(write.index) + sector) & 1U) != 0;
    }
    return false;
}

void put(int descriptor, const RecordedOperation& write, WriteFate fate,
         const std::filesystem::path& path) {
    const std::size_t sectors = (write.written.size() + sector_bytes - 1) / sector_bytes;
    std::size_t sector = 0;
    while (sector < sectors) {
        std::size_t end = sector;
        while (end < sectors && sector_arrives(write, fate, end, sectors))
            ++end;
        const std::size_t first = sector * sector_bytes;
        const std::size_t last = std::min(end * sector_bytes, write.written.size());
        if (end > sector)
            pwrite_all(descriptor, write.written.data() + first, last - first,
                       write.offset_bytes + first, path);
        sector = end + 1;
    }
}

std::filesystem::path moved_path(const std::filesystem::path& path,
                                 const std::filesystem::path& recorded_root,
                                 const std::filesystem::path& copy_root) {
    const auto relative = path.lexically_relative(recorded_root);
    if (relative.empty() || *relative.begin() == "..")
        return path;
    return copy_root / relative;
}

}  // namespace

FateChooser keep_unflushed() {
    return [](const RecordedOperation&) { return WriteFate::keep; };
}

FateChooser drop_unflushed() {
    return [](const RecordedOperation&) { return WriteFate::drop; };
}

FateChooser seeded_fates(std::uint64_t seed) {
    return [seed](const RecordedOperation& write) {
        constexpr std::uint64_t fates = 5;
        return static_cast<WriteFate>(mix(mix(seed) + write.index) % fates);
    };
}

RecordedDisk::~RecordedDisk() {
    for (const auto& [path, image] : images_)
        ::close(image.descriptor);
}

std::size_t RecordedDisk::operations() const {
    const std::lock_guard lock(mutex_);
    return log_.size();
}

std::vector<RecordedOperation> RecordedDisk::log() const {
    const std::lock_guard lock(mutex_);
    return log_;
}

void RecordedDisk::fail_from(std::size_t first_failing) {
    set_faults([first_failing](const RecordedOperation& operation) {
        return operation.index >= first_failing ? EIO : 0;
    });
}

void RecordedDisk::set_faults(std::function<int(const RecordedOperation&)> plan) {
    const std::lock_guard lock(mutex_);
    faults_ = std::move(plan);
}

void RecordedDisk::materialise(std::size_t crash_point, const FateChooser& fate) const {
    materialise(crash_point, fate, {}, {});
}

void RecordedDisk::materialise(std::size_t crash_point, const FateChooser& fate,
                               const std::filesystem::path& recorded_root,
                               const std::filesystem::path& copy_root) const {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < std::min(crash_point, log_.size()); ++i) {
        const RecordedOperation& write = log_[i];
        if (write.operation != nvme::IoOperation::write || write.error != 0 ||
            images_.at(write.path).is_unnamed)
            continue;
        const auto path =
            copy_root.empty() ? write.path : moved_path(write.path, recorded_root, copy_root);
        const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (descriptor < 0)
            fail("open " + path.string());
        put(descriptor, write, is_flushed(write, crash_point) ? WriteFate::keep : fate(write),
            path);
        ::close(descriptor);
    }
}

bool RecordedDisk::is_flushed(const RecordedOperation& write, std::size_t crash_point) const {
    const std::size_t end = std::min(crash_point, log_.size());
    for (std::size_t i = write.index + 1; i < end; ++i) {
        const RecordedOperation& flush = log_[i];
        if (flush.operation == nvme::IoOperation::flush && flush.error == 0 &&
            flush.path == write.path && write.acknowledged_at < flush.submitted_at)
            return true;
    }
    return false;
}

std::pair<std::size_t, std::int64_t> RecordedDisk::execute(
    const nvme::BackendOperation& operation) {
    const std::lock_guard lock(mutex_);
    RecordedOperation record;
    record.index = log_.size();
    record.operation = operation.operation;
    record.path = std::filesystem::absolute(operation.file->path()).lexically_normal();
    record.offset_bytes = operation.offset_bytes;
    record.length_bytes = operation.length_bytes;
    record.submitted_at = clock_++;
    if (faults_)
        record.error = faults_(record);
    auto result = static_cast<std::int64_t>(operation.length_bytes);
    if (record.error != 0) {
        result = -record.error;
    } else if (operation.operation == nvme::IoOperation::write) {
        record.written.assign(operation.data, operation.data + operation.length_bytes);
        write(image_of(record.path, operation.file->descriptor()), operation);
    } else if (operation.operation == nvme::IoOperation::read) {
        result = read(image_of(record.path, operation.file->descriptor()), operation);
    }
    log_.push_back(std::move(record));
    return {log_.size() - 1, result};
}

void RecordedDisk::acknowledge(std::size_t index) {
    const std::lock_guard lock(mutex_);
    log_[index].acknowledged_at = clock_++;
}

RecordedDisk::Image& RecordedDisk::image_of(const std::filesystem::path& path, int descriptor) {
    Image& image = images_[path];
    if (image.descriptor < 0) {
        image.descriptor =
            ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDONLY | O_CLOEXEC);
        struct stat status = {};
        if (image.descriptor < 0 || ::fstat(image.descriptor, &status) != 0)
            fail("open " + path.string());
        image.is_unnamed = status.st_nlink == 0;
    }
    return image;
}

void RecordedDisk::write(Image& image, const nvme::BackendOperation& operation) {
    const std::uint64_t end = operation.offset_bytes + operation.length_bytes;
    image.written_end_bytes = std::max(image.written_end_bytes, end);
    for (std::uint64_t at = operation.offset_bytes; at < end;) {
        const std::uint64_t number = at / block_bytes;
        const std::uint64_t within = at % block_bytes;
        const auto length = static_cast<std::size_t>(std::min(block_bytes - within, end - at));
        auto& block = image.blocks[number];
        if (block.empty()) {
            block.resize(block_bytes);
            pread_or_zero(image.descriptor, block.data(), block_bytes, number * block_bytes);
        }
        std::memcpy(block.data() + within, operation.data + (at - operation.offset_bytes), length);
        at += length;
    }
}

std::int64_t RecordedDisk::read(const Image& image, const nvme::BackendOperation& operation) {
    struct stat status = {};
    if (::fstat(image.descriptor, &status) != 0)
        fail("fstat");
    const std::uint64_t file_end =
        std::max(image.written_end_bytes, static_cast<std::uint64_t>(status.st_size));
    if (operation.offset_bytes >= file_end)
        return 0;
    const auto length = static_cast<std::size_t>(
        std::min<std::uint64_t>(operation.length_bytes, file_end - operation.offset_bytes));
    pread_or_zero(image.descriptor, operation.data, length, operation.offset_bytes);
    const std::uint64_t end = operation.offset_bytes + length;
    for (std::uint64_t at = operation.offset_bytes; at < end;) {
        const std::uint64_t within = at % block_bytes;
        const auto piece = static_cast<std::size_t>(std::min(block_bytes - within, end - at));
        const auto found = image.blocks.find(at / block_bytes);
        if (found != image.blocks.end())
            std::memcpy(operation.data + (at - operation.offset_bytes),
                        found->second.data() + within, piece);
        at += piece;
    }
    return static_cast<std::int64_t>(length);
}

RecordingBackend::RecordingBackend(std::shared_ptr<RecordedDisk> disk, std::size_t depth,
                                   std::uint64_t seed)
    : disk_(std::move(disk)), depth_(depth), random_(seed) {}

std::size_t RecordingBackend::submit(std::span<const nvme::BackendOperation> operations) {
    const std::size_t taken = std::min(operations.size(), depth_ - finished_.size());
    for (const auto& operation : operations.first(taken)) {
        const auto [index, result] = disk_->execute(operation);
        finished_.push_back({{operation.id, result}, index});
    }
    return taken;
}

std::size_t RecordingBackend::wait(std::span<nvme::BackendCompletion> completions) {
    std::unique_lock lock(mutex_);
    woken_condition_.wait(lock, [this] { return woken_ || !finished_.empty(); });
    woken_ = false;
    std::size_t count = 0;
    while (count < completions.size() && !finished_.empty()) {
        std::swap(finished_[random_() % finished_.size()], finished_.back());
        completions[count++] = finished_.back().completion;
        disk_->acknowledge(finished_.back().index);
        finished_.pop_back();
    }
    return count;
}

void RecordingBackend::wake() noexcept {
    {
        const std::lock_guard lock(mutex_);
        woken_ = true;
    }
    woken_condition_.notify_one();
}

}  // namespace spillway::testing
