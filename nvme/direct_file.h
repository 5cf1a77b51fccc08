// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace spillway::nvme {

enum class OpenMode {
    open_existing,     ///< read and write; the file must exist
    open_read_only,    ///< the file must exist
    create_or_open,    ///< read and write; created empty (mode 0644) if missing
    create_exclusive,  ///< read and write; an existing file is an error
    /// Read and write; a new empty file that has no name, so that it is gone when it is closed,
    /// however the process ends. `path` is what messages call it; it lies in the folder of that.
    /// Where the file system makes none without a name, the name is taken away at once.
    create_unnamed,
};

enum class DirectMode {
    automatic,  ///< direct where the file system allows it, buffered otherwise; see
                ///< DirectFile::is_direct
    required,   ///< a file system that refuses O_DIRECT is an error that names folder and file
                ///< system
    buffered,   ///< through the page cache
};

/// What the file itself demands of a direct request. Asked of the file (statx STATX_DIOALIGN); 4096
/// each where the kernel does not say. Both are 1 without direct I/O.
struct IoAlignment {
    std::size_t memory_bytes = 4096;
    std::size_t offset_bytes = 4096;  ///< of offsets and of lengths
};

/// An open file for block I/O. Move-only. Thread-safe for reads and writes through an IoQueue; the
/// file must outlive its requests. Every error is a std::system_error whose text names the path.
class DirectFile {
  public:
    /// Refuses device nodes, directories and anything else that is not a regular file. Only a
    /// refusal of O_DIRECT itself (EINVAL) makes `automatic` fall back; EACCES, ENOENT, EROFS,
    /// EMFILE ... are reported as themselves. The flag is read back from the descriptor to fill
    /// is_direct().
    DirectFile(std::filesystem::path path, OpenMode mode, DirectMode direct);
    ~DirectFile();
    DirectFile(DirectFile&& other) noexcept;
    DirectFile& operator=(DirectFile&& other) noexcept;
    DirectFile(const DirectFile&) = delete;  // owns a descriptor
    DirectFile& operator=(const DirectFile&) = delete;

    [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
    [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
    [[nodiscard]] bool is_direct() const noexcept { return is_direct_; }
    [[nodiscard]] IoAlignment alignment() const noexcept { return alignment_; }
    /// Of memory addresses, offsets and lengths, as an IoQueue asks for it: 4096, or more where the
    /// file demands more, whatever this machine's drives would put up with, so that what works here
    /// works on another one. 1 for a file opened `buffered`.
    [[nodiscard]] std::size_t request_alignment_bytes() const noexcept {
        return request_alignment_bytes_;
    }
    [[nodiscard]] std::uint64_t size_bytes() const;

    /// Reserves disk space for [0, bytes) and makes the file at least that long. A full disk is an
    /// error with needed and available bytes; the file keeps its former length then. Where the file
    /// system cannot reserve (EOPNOTSUPP) the file is extended and written with zeros instead.
    void preallocate(std::uint64_t bytes);

    /// fdatasync; blocking. An error here means the data written so far may be gone.
    void sync_data();

    /// The errno of the first flush that failed, 0 when none has. It is final: the kernel reports
    /// lost pages once, so a later flush could only seem to succeed. sync_data() and IoQueue refuse
    /// every further one; a file opened anew starts afresh. From any thread.
    [[nodiscard]] int flush_error() const noexcept { return flush_error_.load(); }
    /// By whoever flushes the descriptor.
    void note_flush_error(int error) noexcept;

  private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    bool is_direct_ = false;
    IoAlignment alignment_;
    std::size_t request_alignment_bytes_ = 1;
    std::atomic<int> flush_error_ = 0;
};

/// fsync of a folder, which makes creations and renames inside it durable. Throws
/// std::system_error.
void sync_folder(const std::filesystem::path& folder);

/// Bytes that an unprivileged process can still write on the file system of `folder`.
[[nodiscard]] std::uint64_t available_bytes(const std::filesystem::path& folder);

}  // namespace spillway::nvme
