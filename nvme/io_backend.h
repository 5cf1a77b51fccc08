// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nvme/io_request.h"
#include "nvme/uring_options.h"

namespace spillway::nvme {

/// A piece of a request as a backend sees it: at most the backend's limit long, aligned, in flight
/// under an id that its completion gives back.
struct BackendOperation {
    std::uint64_t id = 0;
    IoOperation operation = IoOperation::flush;
    DirectFile* file = nullptr;
    std::uint64_t offset_bytes = 0;
    std::byte* data = nullptr;
    std::size_t length_bytes = 0;
    MemoryKind memory = MemoryKind::host;  ///< of `data`
};

/// `result`: bytes moved, or a negated errno. A short count is no error here: the queue finishes
/// it.
struct BackendCompletion {
    std::uint64_t id = 0;
    std::int64_t result = 0;
    const char* detail = "";  ///< what an error means beyond its errno; lives forever
};

/// What a backend may introduce to the kernel once instead of with every operation.
struct FixedResources {
    std::vector<std::span<std::byte>> memory;
    std::vector<DirectFile*> files;
    std::vector<DeviceSpan> device_memory = {};  ///< for a backend that moves it
};

/// Talks to the kernel (or plays it). The queue calls it from one thread at a time, except for
/// wake(). After its destructor nothing moves memory any more: operations in flight have ended or
/// never begin.
class IoBackend {
  public:
    virtual ~IoBackend() = default;

    [[nodiscard]] virtual std::string_view name() const noexcept = 0;
    /// Most operations it can hold in flight.
    [[nodiscard]] virtual std::size_t depth() const noexcept = 0;

    /// Whether operations on such memory may be submitted.
    [[nodiscard]] virtual bool moves(MemoryKind memory) const noexcept {
        return memory == MemoryKind::host;
    }

    /// Before the first submit(), at most once. Returns what could not be done and why, a sentence
    /// each; operations work in any case. `fixed` must stay valid as long as the backend.
    [[nodiscard]] virtual std::vector<std::string> use_fixed(const FixedResources& fixed);

    /// Non-blocking. Takes a prefix of `operations` and returns its length; fewer than all (even
    /// none) is back-pressure, not an error. What is taken begins at the latest in the next
    /// wait(). Throws std::system_error when the backend itself is
    /// broken; it has taken none of these then.
    virtual std::size_t submit(std::span<const BackendOperation> operations) = 0;

    /// Blocking: waits for at least one completion or for wake(), then fills as many of
    /// `completions` as are ready and returns their number (0 after a wake alone). Throws like
    /// submit().
    virtual std::size_t wait(std::span<BackendCompletion> completions) = 0;

    /// Makes a concurrent or the next wait() return. Callable from any thread.
    virtual void wake() noexcept = 0;
};

/// What a user can ask for by name.
enum class BackendKind { automatic, io_uring, libaio, threads };

/// The names of the kinds: "auto", "io_uring", "libaio", "threads".
[[nodiscard]] std::span<const std::string_view> backend_names() noexcept;
/// None: `name` is none of these.
[[nodiscard]] std::optional<BackendKind> backend_kind(std::string_view name) noexcept;

/// `automatic`: io_uring where the kernel allows it (not under many container profiles), else
/// libaio where its library is installed, else threads. A kind asked for by name that does not work
/// is a std::system_error that says why and what to do. `uring` counts where io_uring is used.
[[nodiscard]] std::unique_ptr<IoBackend> make_backend(BackendKind kind, std::size_t depth,
                                                      UringOptions uring = {});

/// Whether io_uring works here; the reason when it does not ("EPERM: ..."), empty when it does.
[[nodiscard]] std::string io_uring_refusal();

/// The same of libaio, whose library may also be missing or whose requests may be used up.
[[nodiscard]] std::string libaio_refusal();

/// What `automatic` comes to here and why: "io_uring", "libaio, since io_uring cannot be used: ..."
[[nodiscard]] std::string automatic_choice();

}  // namespace spillway::nvme
