// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/durable_run.h"

#include <utility>

#include <fmt/format.h>

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
    if (manifest.planes != request.stored)
        refuse("its optimizer keeps other state per parameter");
    if (manifest.durability != "on")
        refuse("it was made without durable commits");
}

std::vector<std::filesystem::path> all_folders(const DurableRun::Request& request) {
    std::vector<std::filesystem::path> all{request.nvme};
    all.insert(all.end(), request.more_nvme.begin(), request.more_nvme.end());
    return all;
}

StateFolder open_or_create(const DurableRun::Request& request) {
    if (StateFolder::holds_run(request.out)) {
        auto folder = StateFolder::open(request.out, LockMode::exclusive);
        check_same_run(folder.manifest(), request);
        if (!request.nvme.empty())
            folder.check_drives(all_folders(request));
        return folder;
    }
    return StateFolder::create(request.out, request.nvme, request.tensors, "on",
                               request.client_settings, request.stored, request.more_nvme);
}

}  // namespace

DurableRun::DurableRun(const DriveQueues& queues, Request request)
    : queues_(queues),
      request_(std::move(request)),
      tiles_(ElementOrder(request_.tensors).tiles()) {
    open();
    if (recovered_ || !std::filesystem::exists(folder_->extents_file()))
        return;
    log_.reset();
    folder_.reset();
    StateFolder::start_over(request_.out, request_.nvme, request_.more_nvme);
    open();
}

void DurableRun::open() {
    folder_.emplace(open_or_create(request_));
    const CommitTableShape shape{
        tiles_, static_cast<std::uint32_t>(request_.tensors.size()), request_.stored,
        place_count(tiles_, Durability::on, folder_->manifest().region_tiles)};
    log_.emplace(queues_.front(), folder_->folder(), folder_->manifest().run, shape,
                 CommitLog::start_for(folder_->folder()));
    recovered_ = log_->recover();
    folder_->check_commit(recovered_ ? recovered_->table.sequence : 0,
                          recovered_ ? std::string_view(recovered_->warning) : "");
}

OpenDrives DurableRun::open_extents() const {
    return open_drives(
        queues_, folder_->open_extents(nvme::OpenMode::create_or_open),
        ExtentMap(tiles_, Durability::on, request_.stored, folder_->manifest().region_tiles));
}

}  // namespace spillway::offload::detail
