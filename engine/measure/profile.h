// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/measure/stored_tuning.h"

namespace spillway::engine {

/// A drive under direct I/O, bytes per second. Writes are sustained for
/// the length of the probe and flushed; `mixed` counts reads and writes made at once together.
struct DriveRates {
    double read_bytes_per_s = 0;
    double write_bytes_per_s = 0;
    double mixed_bytes_per_s = 0;
    friend bool operator==(const DriveRates&, const DriveRates&) = default;
};

/// What a measurement belongs to: with other values here it says nothing.
struct ProfileKey {
    std::string cpu;          ///< as the kernel names the model
    std::string isa;          ///< of the kernels
    std::size_t threads = 0;  ///< that went over the memory
    std::string device;       ///< its identity: "cpu", "sim:64MiB@8GB/s", a GPU's name and address
    std::string file_system;  ///< of the NVMe tier's folders; "" without one
    std::string drive_io;     ///< how those were driven; "" without one
    std::size_t memory_bytes = 0;  ///< gone over, to a power of two
    friend bool operator==(const ProfileKey&, const ProfileKey&) = default;
};

/// What a machine was measured to give. A rate of 0 was not measured, or there is no such resource.
struct MachineProfile {
    ProfileKey key;
    std::int64_t measured_unix_s = 0;
    std::optional<DriveRates> drive;
    double dram_bytes_per_s = 0;  ///< read and written, both counted
    double to_device_bytes_per_s = 0;
    double to_host_bytes_per_s = 0;
    std::vector<std::string> notes;  ///< what to know about the figures, a sentence each
    friend bool operator==(const MachineProfile&, const MachineProfile&) = default;
};

/// How the drive under a file system is best driven, as `spillway bench storage --tune` found it,
/// and what it then gives. One for each file system, whatever the rest of the machine.
struct DriveSettings {
    std::string file_system;  ///< file_system_identity() of a folder on it
    std::int64_t measured_unix_s = 0;
    std::string backend;  ///< "io_uring", "libaio" or "threads"
    std::size_t operation_bytes = 0;
    std::size_t depth = 0;
    DriveRates rates;
    friend bool operator==(const DriveSettings&, const DriveSettings&) = default;
};

/// $XDG_CACHE_HOME/spillway/profile.json, or ~/.cache/spillway/profile.json; empty if the
/// environment names neither an absolute cache folder nor a home.
[[nodiscard]] std::filesystem::path default_profile_path();

enum class ProfileFile {
    absent,
    ours,     ///< read; profiles with rates that cannot be true were left out
    damaged,  ///< begins as ours do, but is cut, damaged or of another format
    foreign,  ///< anything else: not ours to replace
};

/// Never fails: what is ignored, `note` says in a sentence. Nothing but a regular file of at most
/// most_input_bytes is opened.
struct StoredProfiles {
    std::vector<MachineProfile> profiles;
    std::vector<DriveSettings> drives;
    std::vector<StoredTuning> tunings = {};
    std::string note;
    ProfileFile file = ProfileFile::absent;
    std::string reason;  ///< why it is damaged or foreign
};
[[nodiscard]] StoredProfiles load_profiles(const std::filesystem::path& path);

/// Whether a user may have profiles kept at `path`: in a file that is ours, or is not there while
/// its folder is. Throws std::invalid_argument naming the path and what is wrong with it.
void check_profile_path(const std::filesystem::path& path);

/// The newest profile of `key` made within the last `max_age_s`; nullptr if there is none. One from
/// the future (a clock set back) does not count.
[[nodiscard]] const MachineProfile* find_profile(std::span<const MachineProfile> profiles,
                                                 const ProfileKey& key, std::int64_t now_unix_s,
                                                 std::int64_t max_age_s);

/// Adds `profile`, in place of an older one of its key, and writes the file in one step; folders
/// are made as needed, a damaged file is replaced, a foreign one never. Throws std::system_error
/// naming the path.
void store_profile(const std::filesystem::path& path, const MachineProfile& profile);

/// nullptr if the file system's drive was never tuned.
[[nodiscard]] const DriveSettings* find_drive_settings(std::span<const DriveSettings> drives,
                                                       const std::string& file_system);

/// As store_profile(), in place of older settings of the same file system.
void store_drive_settings(const std::filesystem::path& path, const DriveSettings& settings);

/// As store_profile(), in place of an older tuning of the same key.
void store_tuning(const std::filesystem::path& path, const StoredTuning& tuning);

/// The key's parts, asked of this machine.
[[nodiscard]] std::string cpu_model_name();
/// Type and identity of the file system that holds `folder`, stable over reboots where the file
/// system has an identity of its own. Throws std::system_error naming the folder.
[[nodiscard]] std::string file_system_identity(const std::filesystem::path& folder);

}  // namespace spillway::engine
