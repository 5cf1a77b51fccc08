// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nvme/io_backend.h"

namespace spillway::testing {

/// One operation as the disk saw it. `index` is its place in the log, from 0, over all files.
struct RecordedOperation {
    std::size_t index = 0;
    nvme::IoOperation operation = nvme::IoOperation::flush;
    std::filesystem::path path;
    std::uint64_t offset_bytes = 0;
    std::size_t length_bytes = 0;
    std::vector<std::byte> written;  ///< a write's bytes; empty for reads and flushes
    int error = 0;                   ///< errno it was failed with; 0: it was carried out
    std::size_t submitted_at = 0;    ///< on one clock with acknowledged_at
    std::size_t acknowledged_at = ~std::size_t{0};  ///< when the queue learnt of its end
};

/// What a power cut makes of a write that no flush covers. Tearing is by sectors of 512 bytes.
enum class WriteFate {
    keep,
    drop,
    keep_head,  ///< some sectors at its start arrived
    keep_tail,  ///< some sectors at its end arrived
    scatter,    ///< any subset of its sectors arrived
};

using FateChooser = std::function<WriteFate(const RecordedOperation&)>;

[[nodiscard]] FateChooser keep_unflushed();
[[nodiscard]] FateChooser drop_unflushed();
/// Any of the fates, by a hash of the seed and the operation's index.
[[nodiscard]] FateChooser seeded_fates(std::uint64_t seed);

/// A disk whose writes stay in memory: the real files are only read, until a crash state is
/// materialised. Reads see the newest data. Shared by the backends of all queues that use it, so it
/// outlives them. Only what goes through a queue is recorded: DirectFile::sync_data() and
/// preallocate() act on the real file, so flushes must be requests. Thread-safe.
class RecordedDisk {
  public:
    RecordedDisk() = default;
    ~RecordedDisk();
    RecordedDisk(const RecordedDisk&) = delete;
    RecordedDisk& operator=(const RecordedDisk&) = delete;

    /// Operations executed so far, failed ones too: the crash points are 0 ... operations().
    [[nodiscard]] std::size_t operations() const;
    [[nodiscard]] std::vector<RecordedOperation> log() const;

    /// Every operation with index >= `first_failing` fails with EIO and changes nothing.
    void fail_from(std::size_t first_failing);
    /// Asked before each operation; a non-zero errno fails it. Replaces fail_from and the plan
    /// before.
    void set_faults(std::function<int(const RecordedOperation&)> plan);

    /// Writes onto the real files what a power cut after the first `crash_point` operations leaves.
    /// Of these, a write is safe when its file's flush was submitted after the write had been
    /// acknowledged to the queue and was itself carried out; `fate` decides on every other write.
    void materialise(std::size_t crash_point, const FateChooser& fate) const;
    /// The same onto a copy: paths below `recorded_root` are taken below `copy_root` instead. With
    /// a copy for each state, one recorded run serves any number of crash points.
    void materialise(std::size_t crash_point, const FateChooser& fate,
                     const std::filesystem::path& recorded_root,
                     const std::filesystem::path& copy_root) const;

  private:
    friend class RecordingBackend;
    struct Image {
        int descriptor = -1;      ///< buffered, read-only, of the real file
        bool is_unnamed = false;  ///< nothing of it outlives the process
        std::uint64_t written_end_bytes = 0;
        std::unordered_map<std::uint64_t, std::vector<std::byte>> blocks;  ///< newest, by number
    };

    /// The operation's index in the log and its result as a backend gives it.
    std::pair<std::size_t, std::int64_t> execute(const nvme::BackendOperation& operation);
    void acknowledge(std::size_t index);
    Image& image_of(const std::filesystem::path& path, int descriptor);
    static void write(Image& image, const nvme::BackendOperation& operation);
    static std::int64_t read(const Image& image, const nvme::BackendOperation& operation);
    [[nodiscard]] bool is_flushed(const RecordedOperation& write, std::size_t crash_point) const;

    mutable std::mutex mutex_;
    std::size_t clock_ = 0;
    std::vector<RecordedOperation> log_;
    std::map<std::filesystem::path, Image> images_;
    std::function<int(const RecordedOperation&)> faults_;
};

/// A backend on a RecordedDisk. It executes at submit() and gives the completions of what is in
/// flight in a shuffled order that depends on `seed` alone.
class RecordingBackend final : public nvme::IoBackend {
  public:
    RecordingBackend(std::shared_ptr<RecordedDisk> disk, std::size_t depth, std::uint64_t seed = 1);

    [[nodiscard]] std::string_view name() const noexcept override { return "recording"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return depth_; }
    std::size_t submit(std::span<const nvme::BackendOperation> operations) override;
    std::size_t wait(std::span<nvme::BackendCompletion> completions) override;
    void wake() noexcept override;

  private:
    struct Finished {
        nvme::BackendCompletion completion;
        std::size_t index = 0;
    };

    std::shared_ptr<RecordedDisk> disk_;
    std::size_t depth_;
    std::vector<Finished> finished_;  ///< touched by the queue's thread alone
    std::mt19937_64 random_;
    std::mutex mutex_;
    std::condition_variable woken_condition_;
    bool woken_ = false;
};

}  // namespace spillway::testing
