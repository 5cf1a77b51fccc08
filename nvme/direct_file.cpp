// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "nvme/direct_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace spillway::nvme {

namespace {

constexpr mode_t created_mode = 0644;
constexpr std::size_t portable_alignment_bytes = 4096;  // of the largest sectors in use

[[noreturn]] void fail(int error, const std::string& what) {
    throw std::system_error(error, std::generic_category(), what);
}

/// Closes unless released: the constructor below may throw after the file is open.
class Descriptor {
  public:
    explicit Descriptor(int value) noexcept : value_(value) {}
    ~Descriptor() {
        if (value_ >= 0)
            ::close(value_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    [[nodiscard]] int get() const noexcept { return value_; }
    [[nodiscard]] int release() noexcept { return std::exchange(value_, -1); }

  private:
    int value_;
};

const char* kind_name(mode_t mode) {
    if (S_ISBLK(mode) || S_ISCHR(mode))
        return "a device node";
    if (S_ISDIR(mode))
        return "a folder";
    return "not a regular file";
}

void refuse_unless_regular(mode_t mode, const std::filesystem::path& path) {
    if (!S_ISREG(mode))
        fail(EINVAL, fmt::format("{} is {}; only regular files are opened for block I/O: name a "
                                 "file in a folder on a mounted file system",
                                 path.string(), kind_name(mode)));
}

std::string file_system_name(const std::filesystem::path& path) {
    struct statfs status = {};
    if (::statfs(path.c_str(), &status) != 0)
        return "unknown";
    struct Known {
        std::uint32_t magic;
        const char* name;
    };
    constexpr std::array known = {
        Known{0xEF53, "ext4"},      Known{0x58465342, "xfs"},   Known{0x9123683E, "btrfs"},
        Known{0x01021994, "tmpfs"}, Known{0x858458f6, "ramfs"}, Known{0x794c7630, "overlayfs"},
        Known{0x6969, "nfs"},       Known{0x65735546, "fuse"},  Known{0x9fa0, "proc"},
        Known{0xF2F52010, "f2fs"},  Known{0x2FC12FC1, "zfs"},   Known{0x01021997, "9p"},
    };
    const auto magic = static_cast<std::uint32_t>(status.f_type);
    for (const Known& one : known)
        if (one.magic == magic)
            return one.name;
    return fmt::format("of type {:#x}", magic);
}

/// An open descriptor and whether this call made a file with a name.
struct Opened {
    int descriptor = -1;
    bool created = false;
};

int open_unnamed(const std::filesystem::path& path) {
    constexpr int access = O_RDWR | O_CLOEXEC;
    const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    const int unnamed = ::open(folder.c_str(), access | O_TMPFILE, created_mode);
    if (unnamed >= 0)
        return unnamed;
    // EISDIR: of a file system or kernel that takes the flag for a wish to write a folder.
    if (errno != EOPNOTSUPP && errno != EISDIR)
        fail(errno, fmt::format("cannot create {}", path.string()));
    const int named = ::open(path.c_str(), access | O_CREAT | O_EXCL, created_mode);
    if (named < 0)
        fail(errno, fmt::format("cannot create {}", path.string()));
    ::unlink(path.c_str());
    return named;
}

Opened open_or_create(const std::filesystem::path& path, OpenMode mode) {
    if (mode == OpenMode::create_unnamed)
        return {open_unnamed(path), false};
    const int access = (mode == OpenMode::open_read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC;
    if (mode == OpenMode::create_or_open || mode == OpenMode::create_exclusive) {
        const int made = ::open(path.c_str(), access | O_CREAT | O_EXCL, created_mode);
        if (made >= 0)
            return {made, true};
        if (mode == OpenMode::create_exclusive || errno != EEXIST)
            fail(errno, fmt::format("cannot create {}", path.string()));
    }
    const int found = ::open(path.c_str(), access);
    if (found < 0)
        fail(errno, fmt::format("cannot open {}", path.string()));
    return {found, false};
}

/// What the kernel demands of direct requests; empty where it says that the file cannot have any.
std::optional<IoAlignment> ask_alignment(int descriptor) {
    struct statx status = {};
    if (::statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0 ||
        (status.stx_mask & STATX_DIOALIGN) == 0)
        return IoAlignment{};
    if (status.stx_dio_mem_align == 0 || status.stx_dio_offset_align == 0)
        return std::nullopt;
    return IoAlignment{status.stx_dio_mem_align, status.stx_dio_offset_align};
}

/// Turns direct I/O on and returns its alignment; empty where the file system refuses it. The flag
/// is set after opening since open(O_CREAT | O_DIRECT) may refuse and leave the new file behind.
std::optional<IoAlignment> turn_direct(int descriptor, const std::filesystem::path& path) {
    const auto alignment = ask_alignment(descriptor);
    if (!alignment)
        return std::nullopt;
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (::fcntl(descriptor, F_SETFL, flags | O_DIRECT) != 0) {
        if (errno == EINVAL)
            return std::nullopt;
        fail(errno, fmt::format("cannot turn direct I/O on for {}", path.string()));
    }
    if ((::fcntl(descriptor, F_GETFL) & O_DIRECT) == 0)
        return std::nullopt;
    return alignment;
}

void extend_with_zeros(int descriptor, const std::filesystem::path& path, std::uint64_t from,
                       std::uint64_t to) {
    // Buffered, by a descriptor of its own: the end of a file need not be aligned. Not by its name:
    // it need not have one.
    const Descriptor file(
        ::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0)
        fail(errno, fmt::format("cannot open {} to extend it", path.string()));
    const std::vector<std::byte> zeros(std::size_t{1} << 20);
    while (from < to) {
        const auto length =
            static_cast<std::size_t>(std::min<std::uint64_t>(zeros.size(), to - from));
        const ssize_t moved = ::pwrite(file.get(), zeros.data(), length, static_cast<off_t>(from));
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            fail(moved == 0 ? EIO : errno,
                 fmt::format("cannot extend {} to {} bytes: writing zeros at {}", path.string(), to,
                             from));
        from += static_cast<std::uint64_t>(moved);
    }
}

}  // namespace

DirectFile::DirectFile(std::filesystem::path path, OpenMode mode, DirectMode direct)
    : path_(std::move(path)) {
    // Looked at before opening: opening a device or a pipe can already have effects.
    struct stat status = {};
    if (::stat(path_.c_str(), &status) == 0)
        refuse_unless_regular(status.st_mode, path_);
    const Opened opened = open_or_create(path_, mode);
    Descriptor descriptor(opened.descriptor);
    if (::fstat(opened.descriptor, &status) != 0)
        fail(errno, fmt::format("cannot stat {}", path_.string()));
    refuse_unless_regular(status.st_mode, path_);

    std::optional<IoAlignment> alignment;
    if (direct != DirectMode::buffered)
        alignment = turn_direct(opened.descriptor, path_);
    if (direct == DirectMode::required && !alignment) {
        const std::string file_system = file_system_name(path_);
        if (opened.created)
            ::unlink(path_.c_str());
        fail(EINVAL, fmt::format("{}: the file system ({}) of folder {} refuses direct I/O; use a "
                                 "folder on a drive's own file system or allow buffered I/O",
                                 path_.string(), file_system,
                                 std::filesystem::absolute(path_).parent_path().string()));
    }
    is_direct_ = alignment.has_value();
    alignment_ = alignment.value_or(IoAlignment{1, 1});
    if (direct != DirectMode::buffered)
        request_alignment_bytes_ =
            std::max({portable_alignment_bytes, alignment_.memory_bytes, alignment_.offset_bytes});
    descriptor_ = descriptor.release();
}

DirectFile::~DirectFile() {
    if (descriptor_ >= 0)
        ::close(descriptor_);
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      is_direct_(other.is_direct_),
      alignment_(other.alignment_),
      request_alignment_bytes_(other.request_alignment_bytes_),
      flush_error_(other.flush_error_.load()) {}

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
    DirectFile taken(std::move(other));
    std::swap(path_, taken.path_);
    std::swap(descriptor_, taken.descriptor_);
    std::swap(is_direct_, taken.is_direct_);
    std::swap(alignment_, taken.alignment_);
    std::swap(request_alignment_bytes_, taken.request_alignment_bytes_);
    flush_error_.store(taken.flush_error_.load());
    return *this;
}

std::uint64_t DirectFile::size_bytes() const {
    struct stat status = {};
    if (::fstat(descriptor_, &status) != 0)
        fail(errno, fmt::format("cannot stat {}", path_.string()));
    return static_cast<std::uint64_t>(status.st_size);
}

void DirectFile::preallocate(std::uint64_t bytes) {
    if (bytes == 0)
        return;
    if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
        fail(EFBIG, fmt::format("cannot reserve {} bytes for {}", bytes, path_.string()));
    const std::uint64_t former_bytes = size_bytes();
    int error = 0;
    do {
        error = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == 0)
        return;
    const auto cut_back = [&] {
        // A reservation that stopped half-way keeps its blocks until the file is cut back.
        if (::ftruncate(descriptor_, static_cast<off_t>(former_bytes)) != 0)
            fail(errno, fmt::format("cannot cut {} back to {} bytes after a failed reservation",
                                    path_.string(), former_bytes));
    };
    if (error == EOPNOTSUPP) {
        try {
            return extend_with_zeros(descriptor_, path_, former_bytes, bytes);
        } catch (...) {
            cut_back();
            throw;
        }
    }
    cut_back();
    if (error == ENOSPC || error == EDQUOT)
        fail(error, fmt::format("cannot reserve {} bytes for {}: {} bytes are available on its "
                                "file system; free space, ask for less or use another folder",
                                bytes, path_.string(),
                                available_bytes(std::filesystem::absolute(path_).parent_path())));
    fail(error, fmt::format("cannot reserve {} bytes for {}", bytes, path_.string()));
}

void DirectFile::sync_data() {
    if (flush_error() == 0 && ::fdatasync(descriptor_) != 0)
        note_flush_error(errno);
    if (const int error = flush_error(); error != 0)
        fail(error, fmt::format("fdatasync of {} failed: data written since the last flush may be "
                                "lost; write it again from memory to a file opened anew, or give "
                                "up",
                                path_.string()));
}

void DirectFile::note_flush_error(int error) noexcept {
    int none = 0;
    flush_error_.compare_exchange_strong(none, error);
}

void sync_folder(const std::filesystem::path& folder) {
    const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened.get() < 0)
        fail(errno, fmt::format("cannot open folder {} to make it durable", folder.string()));
    if (::fsync(opened.get()) != 0)
        fail(errno, fmt::format("fsync of folder {} failed", folder.string()));
}

std::uint64_t available_bytes(const std::filesystem::path& folder) {
    struct statvfs status = {};
    if (::statvfs(folder.c_str(), &status) != 0)
        fail(errno, fmt::format("cannot ask for the free space of {}", folder.string()));
    return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace spillway::nvme
