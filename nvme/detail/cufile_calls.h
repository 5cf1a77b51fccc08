// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include <sys/types.h>

namespace spillway::nvme::detail {

// The part of cuFile's binary interface that is used, declared here so that neither the build nor a
// machine without a GPU needs the toolkit. See the cuFile API reference,
// https://docs.nvidia.com/gpudirect-storage/api-reference-guide/.

struct CuFileError {
    int code = 0;  ///< 0, or from 5001 on
    int driver_code = 0;
};

struct CuFileDescriptor {
    int type = 1;  ///< a Linux descriptor
    union {
        int descriptor;
        void* handle;
    };
    const void* file_system_operations = nullptr;
};

struct CuFileProperties {
    struct {
        unsigned major_version;
        unsigned minor_version;
        std::size_t poll_threshold_kib;
        std::size_t largest_direct_io_kib;
        unsigned status_flags;   ///< bit 4: nvidia-fs serves NVMe drives
        unsigned control_flags;  ///< bit 1: transfers may go through host memory instead
    } driver;
    unsigned feature_flags;  ///< bit 4: peer-to-peer transfers without nvidia-fs
    unsigned device_cache_kib;
    unsigned cache_per_buffer_kib;
    unsigned pinned_memory_kib;
    unsigned batch_size;
    unsigned batch_time_limit_ms;
};

inline constexpr unsigned cufile_nvme_bit = 4;
inline constexpr unsigned cufile_compatibility_bit = 1;
inline constexpr unsigned cufile_peer_to_peer_bit = 4;
inline constexpr int cufile_already_open = 5026;

/// cuFile's functions as pointers: the program starts without the library.
struct CuFileCalls {
    CuFileError (*open_driver)() = nullptr;
    CuFileError (*get_properties)(CuFileProperties* properties) = nullptr;
    CuFileError (*register_handle)(void** handle, CuFileDescriptor* descriptor) = nullptr;
    void (*deregister_handle)(void* handle) = nullptr;
    CuFileError (*register_buffer)(const void* base, std::size_t bytes, int flags) = nullptr;
    CuFileError (*deregister_buffer)(const void* base) = nullptr;
    ssize_t (*read)(void* handle, void* base, std::size_t bytes, off_t file_offset,
                    off_t base_offset) = nullptr;
    ssize_t (*write)(void* handle, const void* base, std::size_t bytes, off_t file_offset,
                     off_t base_offset) = nullptr;
};

/// Loads the first library of `names` that is there; it stays loaded, since it has threads of its
/// own. Throws std::system_error (ENOENT, or ENOSYS where a library lacks a function) naming what
/// was looked for.
[[nodiscard]] CuFileCalls load_cufile(std::span<const char* const> names);

/// By its usual names, and only where a CUDA driver is: without one, opening cuFile's driver may
/// never return.
[[nodiscard]] CuFileCalls load_cufile();

/// What a cuFile code means, as an errno and in words; any other code is EIO.
struct CuFileMeaning {
    int error = 0;
    const char* text = "";
};
[[nodiscard]] CuFileMeaning meaning_of_cufile(int code) noexcept;

}  // namespace spillway::nvme::detail
