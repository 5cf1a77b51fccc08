// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/durable_run.h"

#include <utility>

#include <fmt/format.h>

#include "offload/detail/state/manifest_layout.h"

namespace spillway::offload::detail {
namespace {

/// The folder's run must be of the same tensors and state.
void check_same_run(const Manifest& manifest, const DurableRun::Request& request) {
    const auto& specs = request.tensors;
    const auto refuse = [&](const std::string& what) {
        throw FolderRefused(fmt::format("{} holds another run: {}; use an empty folder",
                                        request.out.string(), what));
    };
    if (manifest.tensors.size() != specs.size())
        refuse(
            fmt::format("it has {} tensors, here are {}", manifest.tensors.size(), specs.size()));
    for (std::size_t i = 0; i < specs.size(); ++i) {
        const auto& there = manifest.tensors[i];
        if (there.name != specs[i].name || there.shape != specs[i].shape)
            refuse(fmt::format("its tensor {} is '{}' of shape [{}], here it is '{}' of shape [{}]",
                               i, there.name, fmt::join(there.shape, ", "), specs[i].name,
                               fmt::join(specs[i].shape, ", ")));
    }
    const auto kept = state_format_of(manifest.planes);
    if (const auto wanted = state_format_of(request.stored); kept != wanted)
        refuse(fmt::format("its optimizer keeps state in {}, here in {}",
                           cpu_optim::state_format_name(kept),
                           cpu_optim::state_format_name(wanted)));
    if (const bool averages = manifest.planes.contains(Plane::average);
        averages != request.stored.contains(Plane::average))
        refuse(
            fmt::format("it keeps {} average of its weights, and that is fixed when a run is made",
                        averages ? "an" : "no"));
    if (manifest.average && request.average && *manifest.average != *request.average)
        refuse(fmt::format(
            "its average of the weights is {} after each {} updates, here it is {} after each {}, "
            "and that is fixed when a run is made",
            average_kind_name(manifest.average->kind), manifest.average->every,
            average_kind_name(request.average->kind), request.average->every));
    if (manifest.planes != request.stored || manifest.second_moments != request.second_moments)
        refuse("its optimizer keeps other state per parameter");
    if (manifest.durability != "on")
        refuse("it was made without durable commits");
}

std::vector<std::filesystem::path> all_folders(const DurableRun::Request& request) {
    if (request.nvme.empty())
        return {};
    std::vector<std::filesystem::path> all{request.nvme};
    all.insert(all.end(), request.more_nvme.begin(), request.more_nvme.end());
    return all;
}

}  // namespace

DurableRun::DurableRun(const DriveQueues& queues, Request request)
    : queues_(queues), request_(std::move(request)) {
    open();
    if (recovered_ || !std::filesystem::exists(folder_->extents_file()))
        return;
    log_.reset();
    folder_.reset();
    StateFolder::start_over(request_.out, request_.nvme, request_.more_nvme);
    open();
}

/// None: there is none, or none that could be moved to where it is to be, since it has no commit.
std::optional<StateFolder> DurableRun::open_former() {
    if (!StateFolder::holds_run(request_.out))
        return std::nullopt;
    auto folder = StateFolder::open(request_.out, LockMode::exclusive);
    check_same_run(folder.manifest(), request_);
    const auto drives = all_folders(request_);
    if (folder.lies_on(drives)) {
        finish_relocations(folder);
        return folder;
    }
    relocation_ = relocate(folder, drives, request_.relocation);
    if (!relocation_)
        return std::nullopt;
    return folder;
}

StateFolder DurableRun::open_or_create() {
    if (auto folder = open_former())
        return std::move(*folder);
    if (StateFolder::holds_run(request_.out))
        StateFolder::start_over(request_.out, request_.nvme, request_.more_nvme);
    return StateFolder::create(request_.out, request_.nvme, request_.tensors, "on",
                               request_.client_settings, request_.stored, request_.more_nvme,
                               request_.average, request_.second_moments);
}

void DurableRun::open() {
    folder_.emplace(open_or_create());
    log_.emplace(queues_.front(), folder_->folder(), folder_->manifest().run,
                 table_shape_of(folder_->manifest()), CommitLog::start_for(folder_->folder()),
                 folder_->manifest().generation);
    recovered_ = log_->recover();
    folder_->check_commit(recovered_ ? recovered_->table.sequence : 0,
                          recovered_ ? std::string_view(recovered_->warning) : "");
}

OpenDrives DurableRun::open_extents() const {
    return open_drives(queues_, folder_->open_extents(nvme::OpenMode::create_or_open),
                       extent_map_of(folder_->manifest()));
}

}  // namespace spillway::offload::detail
