// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nvme/io_backend.h"
#include "nvme/thread_backend.h"

namespace spillway::nvme {

namespace detail {
struct CuFileCalls;
}

struct GdsOptions {
    /// Runs at the start of each thread that calls cuFile, which needs the CUDA context of the
    /// memory to be current there: the owner of that memory makes it so. Must not throw.
    std::function<void()> enter_thread = {};
};

/// GPUDirect Storage through NVIDIA's cuFile, which is loaded at run time: moves MemoryKind::device
/// by blocking calls on a small pool of threads, and host memory as ThreadBackend does. Files must
/// be open for direct I/O. Whether the bytes really bypass host memory is another matter: see
/// GdsReport. cuFile's driver stays open until the process ends.
class GdsBackend final : public IoBackend {
  public:
    /// Throws std::system_error where cuFile's driver does not open.
    GdsBackend(std::size_t depth, const detail::CuFileCalls& calls, GdsOptions options = {});
    ~GdsBackend() override;
    GdsBackend(const GdsBackend&) = delete;  // its threads point at it
    GdsBackend& operator=(const GdsBackend&) = delete;

    [[nodiscard]] std::string_view name() const noexcept override { return "gds"; }
    [[nodiscard]] std::size_t depth() const noexcept override { return pool_->depth(); }
    [[nodiscard]] bool moves(MemoryKind) const noexcept override { return true; }
    /// Registers device memory and files, which else costs something per operation.
    [[nodiscard]] std::vector<std::string> use_fixed(const FixedResources& fixed) override;
    std::size_t submit(std::span<const BackendOperation> operations) override {
        return pool_->submit(operations);
    }
    std::size_t wait(std::span<BackendCompletion> completions) override {
        return pool_->wait(completions);
    }
    void wake() noexcept override { pool_->wake(); }

  private:
    /// A file known to cuFile as long as anyone uses it: it must not be told of one twice.
    struct OpenHandle {
        void* handle = nullptr;
        std::size_t users = 0;
    };

    [[nodiscard]] BackendCompletion perform(const BackendOperation& operation);
    [[nodiscard]] BackendCompletion transfer(void* handle, const BackendOperation& operation) const;
    [[nodiscard]] int use_handle(const DirectFile& file, void*& handle);
    void end_use(const DirectFile& file) noexcept;

    std::unique_ptr<const detail::CuFileCalls> calls_;
    std::vector<DeviceSpan> fixed_memory_;  ///< by address
    std::vector<DirectFile*> fixed_files_;  ///< each a user of its handle
    std::mutex mutex_;                      ///< guards the next
    std::map<int, OpenHandle> handles_;     ///< by descriptor
    std::unique_ptr<ThreadBackend> pool_;   ///< last: its threads use all of the above
};

/// A backend for device memory, or a std::system_error that says what it lacks and what to do.
[[nodiscard]] std::unique_ptr<IoBackend> make_gds_backend(std::size_t depth,
                                                          GdsOptions options = {});

/// What becomes of transfers between a drive and GPU memory on this machine, as far as cuFile
/// tells.
struct GdsReport {
    enum class Path {
        none,           ///< cuFile does not work here
        compatibility,  ///< cuFile copies through host memory
        undecided,      ///< past it where drive and file system allow, else through it: not told
        direct,         ///< past host memory, or an error
    };
    Path path = Path::none;
    std::string text;  ///< for people, one line: "no: ENOENT: ...", "through host memory: ..."
};

/// Opens cuFile's driver to ask it. Never throws for something that is missing.
[[nodiscard]] GdsReport gds_report();
[[nodiscard]] GdsReport gds_report(const detail::CuFileCalls& calls);

}  // namespace spillway::nvme
