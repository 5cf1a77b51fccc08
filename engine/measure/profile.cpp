// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/profile.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/statfs.h>

#include "engine/cli/output_place.h"
#include "engine/interop/atomic_file.h"
#include "engine/interop/input_file.h"
#include "nvme/io_backend.h"
#include "nvme/links.h"

namespace spillway::engine {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Raised when a field changes its meaning: older files are then measured anew.
constexpr int format_version = 1;
constexpr std::size_t most_profiles = 64;

/// No machine's: a clock that stood still, or a file that was edited.
class ImplausibleRate : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

double rate(const json& object, const char* key) {
    constexpr double least = 1e3;
    constexpr double most = 1e15;
    const auto value = object.at(key).get<double>();
    if (value != 0 && !(value > least && value < most))
        throw ImplausibleRate(fmt::format("'{}' is {}", key, value));
    return value;
}

json json_of(const DriveRates& rates) {
    return {{"read_bytes_per_s", rates.read_bytes_per_s},
            {"write_bytes_per_s", rates.write_bytes_per_s},
            {"mixed_bytes_per_s", rates.mixed_bytes_per_s}};
}

DriveRates rates_of(const json& object) {
    return {rate(object, "read_bytes_per_s"), rate(object, "write_bytes_per_s"),
            rate(object, "mixed_bytes_per_s")};
}

json json_of(const DriveSettings& settings) {
    auto object = json_of(settings.rates);
    object["file_system"] = settings.file_system;
    object["measured_unix_s"] = settings.measured_unix_s;
    object["backend"] = settings.backend;
    object["operation_bytes"] = settings.operation_bytes;
    object["depth"] = settings.depth;
    return object;
}

DriveSettings drive_settings_of(const json& object) {
    DriveSettings settings{object.at("file_system").get<std::string>(),
                           object.at("measured_unix_s").get<std::int64_t>(),
                           object.at("backend").get<std::string>(),
                           object.at("operation_bytes").get<std::size_t>(),
                           object.at("depth").get<std::size_t>(),
                           rates_of(object)};
    constexpr std::size_t unit_bytes = 4096;
    constexpr std::size_t most_operation_bytes = std::size_t{1} << 30;
    constexpr std::size_t most_depth = 4096;
    const auto kind = nvme::backend_kind(settings.backend);
    const bool can_be_true = kind && *kind != nvme::BackendKind::automatic &&
                             settings.operation_bytes >= unit_bytes &&
                             settings.operation_bytes % unit_bytes == 0 &&
                             settings.operation_bytes <= most_operation_bytes &&
                             settings.depth >= 1 && settings.depth <= most_depth;
    if (!can_be_true)
        throw ImplausibleRate(fmt::format("a drive's settings are {}, {} bytes, depth {}",
                                          settings.backend, settings.operation_bytes,
                                          settings.depth));
    return settings;
}

json json_of(const MachineProfile& profile) {
    json drive;
    if (profile.drive)
        drive = json_of(*profile.drive);
    return {{"cpu", profile.key.cpu},
            {"isa", profile.key.isa},
            {"threads", profile.key.threads},
            {"device", profile.key.device},
            {"file_system", profile.key.file_system},
            {"drive_io", profile.key.drive_io},
            {"memory_bytes", profile.key.memory_bytes},
            {"measured_unix_s", profile.measured_unix_s},
            {"drive", drive},
            {"dram_bytes_per_s", profile.dram_bytes_per_s},
            {"to_device_bytes_per_s", profile.to_device_bytes_per_s},
            {"to_host_bytes_per_s", profile.to_host_bytes_per_s},
            {"notes", profile.notes}};
}

MachineProfile profile_of(const json& object) {
    MachineProfile profile;
    profile.key = {object.at("cpu").get<std::string>(),
                   object.at("isa").get<std::string>(),
                   object.at("threads").get<std::size_t>(),
                   object.at("device").get<std::string>(),
                   object.at("file_system").get<std::string>(),
                   object.value("drive_io", std::string()),  // not in files of earlier versions,
                   object.value("memory_bytes", std::size_t{0})};  // nor this
    profile.measured_unix_s = object.at("measured_unix_s").get<std::int64_t>();
    if (const auto& drive = object.at("drive"); !drive.is_null())
        profile.drive = rates_of(drive);
    profile.dram_bytes_per_s = rate(object, "dram_bytes_per_s");
    profile.to_device_bytes_per_s = rate(object, "to_device_bytes_per_s");
    profile.to_host_bytes_per_s = rate(object, "to_host_bytes_per_s");
    profile.notes = object.at("notes").get<std::vector<std::string>>();
    return profile;
}

void parse_profiles(const std::string& text, StoredProfiles& stored) {
    const auto root = json::parse(text);
    if (root.at("format") != format_version)
        throw std::runtime_error(fmt::format("its format is not {}", format_version));
    for (const auto& object : root.at("profiles")) {
        try {
            stored.profiles.push_back(profile_of(object));
        } catch (const ImplausibleRate& error) {
            stored.note = fmt::format("a profile was ignored: {}", error.what());
        }
    }
    // Absent where nothing was tuned, and in files of earlier versions.
    for (const auto& object : root.value("storage", json::array())) {
        try {
            stored.drives.push_back(drive_settings_of(object));
        } catch (const ImplausibleRate& error) {
            stored.note = fmt::format("a drive's settings were ignored: {}", error.what());
        }
    }
    // Absent where nothing was searched for, and in files of earlier versions.
    for (const auto& object : root.value("tunings", json::array())) {
        auto tuning = stored_tuning_of(object);
        if (const auto problem = problem_of(tuning); !problem.empty())
            stored.note = fmt::format("a tuning was ignored: {}", problem);
        else
            stored.tunings.push_back(std::move(tuning));
    }
}

/// The profiles that a file at `path` has; throws where it is not ours to replace.
StoredProfiles load_to_change(const fs::path& path) {
    auto stored = load_profiles(path);
    if (stored.file == ProfileFile::foreign)
        throw std::system_error(EEXIST, std::generic_category(), stored.note);
    return stored;
}

void write_profiles(const fs::path& path, const StoredProfiles& stored) {
    json root{{"format", format_version},
              {"profiles", json::array()},
              {"storage", json::array()},
              {"tunings", json::array()}};
    for (const auto& each : stored.profiles)
        root["profiles"].push_back(json_of(each));
    for (const auto& each : stored.drives)
        root["storage"].push_back(json_of(each));
    for (const auto& each : stored.tunings)
        root["tunings"].push_back(json_of(each));
    const auto folder = fs::absolute(path).parent_path();
    fs::create_directories(folder);
    write_file_atomically(nvme::behind_links(path),
                          root.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

/// As every file that store_profile() writes, of any format.
bool begins_as_ours(std::string_view text) {
    const auto skip = [&text](std::string_view lead) {
        const bool found = text.starts_with(lead);
        text.remove_prefix(found ? lead.size() : 0);
        return found;
    };
    if (!skip("{\n  \"format\": "))
        return false;
    text.remove_prefix(std::min(text.find_first_not_of("0123456789"), text.size()));
    return skip(",\n  \"profiles\": [");
}

fs::path absolute_folder_of(const char* variable) {
    const char* value = std::getenv(variable);
    if (value == nullptr)
        return {};
    const fs::path folder = value;
    return folder.is_absolute() ? folder : fs::path();
}

}  // namespace

fs::path default_profile_path() {
    auto cache = absolute_folder_of("XDG_CACHE_HOME");
    if (cache.empty()) {
        const auto home = absolute_folder_of("HOME");
        if (home.empty())
            return {};
        cache = home / ".cache";
    }
    return cache / "spillway" / "profile.json";
}

StoredProfiles load_profiles(const fs::path& path) {
    std::error_code error;
    if (fs::status(path, error).type() == fs::file_type::not_found)
        return {};
    std::string text;
    try {
        text = read_regular_file(path);
        StoredProfiles stored{.profiles = {},
                              .drives = {},
                              .tunings = {},
                              .note = "",
                              .file = ProfileFile::ours,
                              .reason = ""};
        parse_profiles(text, stored);
        if (!stored.note.empty())
            stored.note = path.string() + ": " + stored.note;
        return stored;
    } catch (const std::exception& failed) {
        const auto reason = json_reason(failed);
        if (begins_as_ours(text))
            return {.profiles = {},
                    .drives = {},
                    .note = fmt::format("{} is not a usable profile and was ignored: {}",
                                        path.string(), reason),
                    .file = ProfileFile::damaged,
                    .reason = reason};
        return {.profiles = {},
                .drives = {},
                .note = fmt::format("{} is no profile of this program, was ignored and stays as "
                                    "it is: {}",
                                    path.string(), reason),
                .file = ProfileFile::foreign,
                .reason = reason};
    }
}

void check_profile_path(const fs::path& path) {
    const auto stored = load_profiles(path);
    if (stored.file == ProfileFile::ours)
        return;
    if (stored.file != ProfileFile::absent)
        throw std::invalid_argument(
            fmt::format("{} is no profile of this program: name another file or remove it ({})",
                        path.string(), stored.reason));
    if (const auto problem = file_problem(path); !problem.empty())
        throw std::invalid_argument(path.string() + " cannot be written: " + problem);
}

const MachineProfile* find_profile(std::span<const MachineProfile> profiles, const ProfileKey& key,
                                   std::int64_t now_unix_s, std::int64_t max_age_s) {
    const MachineProfile* newest = nullptr;
    for (const auto& profile : profiles) {
        // The subtraction comes last: a damaged time must not overflow.
        const bool counts = profile.key == key && profile.measured_unix_s >= 0 &&
                            profile.measured_unix_s <= now_unix_s &&
                            now_unix_s - profile.measured_unix_s <= max_age_s;
        if (counts && (newest == nullptr || newest->measured_unix_s < profile.measured_unix_s))
            newest = &profile;
    }
    return newest;
}

void store_profile(const fs::path& path, const MachineProfile& profile) {
    auto stored = load_to_change(path);
    std::erase_if(stored.profiles, [&](const auto& other) { return other.key == profile.key; });
    stored.profiles.push_back(profile);
    if (stored.profiles.size() > most_profiles)
        stored.profiles.erase(stored.profiles.begin());
    write_profiles(path, stored);
}

const DriveSettings* find_drive_settings(std::span<const DriveSettings> drives,
                                         const std::string& file_system) {
    const auto found = std::find_if(drives.begin(), drives.end(), [&](const auto& each) {
        return each.file_system == file_system;
    });
    return found == drives.end() ? nullptr : &*found;
}

void store_drive_settings(const fs::path& path, const DriveSettings& settings) {
    auto stored = load_to_change(path);
    std::erase_if(stored.drives,
                  [&](const auto& other) { return other.file_system == settings.file_system; });
    stored.drives.push_back(settings);
    if (stored.drives.size() > most_profiles)
        stored.drives.erase(stored.drives.begin());
    write_profiles(path, stored);
}

void store_tuning(const fs::path& path, const StoredTuning& tuning) {
    auto stored = load_to_change(path);
    std::erase_if(stored.tunings, [&](const auto& other) { return other.key == tuning.key; });
    stored.tunings.push_back(tuning);
    if (stored.tunings.size() > most_profiles)
        stored.tunings.erase(stored.tunings.begin());
    write_profiles(path, stored);
}

std::string cpu_model_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        const auto colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos)
            return line.substr(colon + 2);
    }
    return "unknown processor";
}

std::string file_system_identity(const fs::path& folder) {
    struct statfs info {};
    if (::statfs(folder.c_str(), &info) != 0)
        throw std::system_error(errno, std::generic_category(), "statfs of " + folder.string());
    return fmt::format("{:x}:{:08x}{:08x}", static_cast<std::uint64_t>(info.f_type),
                       static_cast<std::uint32_t>(info.f_fsid.__val[0]),
                       static_cast<std::uint32_t>(info.f_fsid.__val[1]));
}

}  // namespace spillway::engine
