// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/measure/drive_choice.h"

#include <cstddef>

#include <fmt/format.h>

#include "nvme/io_backend.h"

namespace spillway::engine {
namespace {

/// A kernel or container may have changed since the drive was tuned.
bool works_here(nvme::BackendKind backend) {
    switch (backend) {
        case nvme::BackendKind::io_uring:
            return nvme::io_uring_refusal().empty();
        case nvme::BackendKind::libaio:
            return nvme::libaio_refusal().empty();
        default:
            return true;
    }
}

}  // namespace

std::vector<offload::DriveIo> choose_drive_io(std::span<const std::filesystem::path> folders,
                                              nvme::BackendKind backend,
                                              std::span<const DriveSettings> tuned) {
    std::vector<offload::DriveIo> all;
    for (const auto& folder : folders) {
        offload::DriveIo io;
        io.backend = backend;
        if (const auto* const found = find_drive_settings(tuned, file_system_identity(folder))) {
            const auto kind = nvme::backend_kind(found->backend).value_or(backend);
            const bool free = backend == nvme::BackendKind::automatic && works_here(kind);
            if (free || backend == kind)
                io = {kind, found->depth, found->operation_bytes};
        }
        all.push_back(io);
    }
    return all;
}

std::vector<offload::DriveIo> choose_drive_io(const TrainSettings& settings) {
    const auto folders = nvme_folders(settings.nvme);
    if (folders.empty())
        return {};
    const auto path = profile_path(settings);
    const auto stored = path.empty() ? StoredProfiles{} : load_profiles(path);
    auto all = choose_drive_io(folders, io_backend_kind(settings), stored.drives);
    for (auto& io : all)
        io = drive_io_of(settings.tuning, io);
    return all;
}

std::string drive_io_text(const offload::DriveIo& io) {
    return fmt::format("{}, {} bytes at depth {}",
                       nvme::backend_names()[static_cast<std::size_t>(io.backend)],
                       io.operation_bytes, io.depth);
}

std::filesystem::path profile_path(const TrainSettings& settings) {
    return settings.profile.empty() ? default_profile_path() : settings.profile;
}

}  // namespace spillway::engine
