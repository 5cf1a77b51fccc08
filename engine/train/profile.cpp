// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/profile.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/statfs.h>

#include "engine/interop/atomic_file.h"

namespace spillway::engine {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Raised when a field changes its meaning: older files are then measured anew.
constexpr int format_version = 1;
constexpr std::size_t most_profiles = 64;

double rate(const json& object, const char* key) {
    const auto value = object.at(key).get<double>();
    if (!std::isfinite(value) || value < 0)
        throw std::runtime_error(fmt::format("'{}' is {}", key, value));
    return value;
}

json json_of(const MachineProfile& profile) {
    json drive;
    if (profile.drive)
        drive = {{"read_bytes_per_s", profile.drive->read_bytes_per_s},
                 {"write_bytes_per_s", profile.drive->write_bytes_per_s},
                 {"mixed_bytes_per_s", profile.drive->mixed_bytes_per_s}};
    return {{"cpu", profile.key.cpu},
            {"isa", profile.key.isa},
            {"threads", profile.key.threads},
            {"device", profile.key.device},
            {"file_system", profile.key.file_system},
            {"measured_unix_s", profile.measured_unix_s},
            {"drive", drive},
            {"dram_bytes_per_s", profile.dram_bytes_per_s},
            {"update_parameters_per_s", profile.update_parameters_per_s},
            {"to_device_bytes_per_s", profile.to_device_bytes_per_s},
            {"to_host_bytes_per_s", profile.to_host_bytes_per_s},
            {"notes", profile.notes}};
}

MachineProfile profile_of(const json& object) {
    MachineProfile profile;
    profile.key = {object.at("cpu").get<std::string>(), object.at("isa").get<std::string>(),
                   object.at("threads").get<std::size_t>(), object.at("device").get<std::string>(),
                   object.at("file_system").get<std::string>()};
    profile.measured_unix_s = object.at("measured_unix_s").get<std::int64_t>();
    if (const auto& drive = object.at("drive"); !drive.is_null())
        profile.drive =
            DriveRates{rate(drive, "read_bytes_per_s"), rate(drive, "write_bytes_per_s"),
                       rate(drive, "mixed_bytes_per_s")};
    profile.dram_bytes_per_s = rate(object, "dram_bytes_per_s");
    profile.update_parameters_per_s = rate(object, "update_parameters_per_s");
    profile.to_device_bytes_per_s = rate(object, "to_device_bytes_per_s");
    profile.to_host_bytes_per_s = rate(object, "to_host_bytes_per_s");
    profile.notes = object.at("notes").get<std::vector<std::string>>();
    return profile;
}

std::vector<MachineProfile> parse_profiles(const std::string& text) {
    const auto root = json::parse(text);
    if (root.at("format") != format_version)
        throw std::runtime_error(
            fmt::format("its format is {}, not {}", root.at("format").dump(), format_version));
    std::vector<MachineProfile> profiles;
    for (const auto& object : root.at("profiles"))
        profiles.push_back(profile_of(object));
    return profiles;
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
    std::ifstream file(path, std::ios::binary);
    if (!file)
        return {};
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    try {
        return {parse_profiles(text), ""};
    } catch (const std::exception& error) {
        return {{},
                fmt::format("{} is not a usable profile and was ignored: {}", path.string(),
                            error.what())};
    }
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
    auto profiles = load_profiles(path).profiles;
    std::erase_if(profiles, [&](const auto& other) { return other.key == profile.key; });
    profiles.push_back(profile);
    if (profiles.size() > most_profiles)
        profiles.erase(profiles.begin());
    json root{{"format", format_version}, {"profiles", json::array()}};
    for (const auto& each : profiles)
        root["profiles"].push_back(json_of(each));
    const auto folder = fs::absolute(path).parent_path();
    fs::create_directories(folder);
    write_file_atomically(path, root.dump(2) + "\n");
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
