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
    if (manifest.planes != request.stored)
        refuse("its optimizer keeps other state per parameter");
    if (manifest.durability != "on")
        refuse("it was made without durable commits");
}

StateFolder open_or_create(const DurableRun::Request& request) {
    if (StateFolder::holds_run(request.out)) {
        auto folder = StateFolder::open(request.out, LockMode::exclusive);
        check_same_run(folder.manifest(), request);
        return folder;
    }
    return StateFolder::create(request.out, request.nvme, request.tensors, "on",
                               request.client_settings, request.stored);
}

}  // namespace

DurableRun::DurableRun(nvme::IoQueue& queue, Request request)
    : queue_(queue), request_(std::move(request)) {
    open();
    if (recovered_ || !std::filesystem::exists(folder_->extents_file()))
        return;
    log_.reset();
    folder_.reset();
    StateFolder::start_over(request_.out, request_.nvme);
    open();
}

void DurableRun::open() {
    folder_.emplace(open_or_create(request_));
    const CommitTableShape shape{ElementOrder(request_.tensors).tiles(),
                                 static_cast<std::uint32_t>(request_.tensors.size()),
                                 request_.stored};
    log_.emplace(queue_, folder_->folder(), folder_->manifest().run, shape,
                 CommitLog::start_for(folder_->folder()));
    recovered_ = log_->recover();
    folder_->check_commit(recovered_ ? recovered_->table.sequence : 0,
                          recovered_ ? std::string_view(recovered_->warning) : "");
}

nvme::DirectFile DurableRun::open_extents(std::uint64_t bytes) const {
    nvme::DirectFile extents(folder_->extents_file(), nvme::OpenMode::create_or_open,
                             nvme::DirectMode::automatic);
    extents.preallocate(bytes);
    return extents;
}

}  // namespace spillway::offload::detail
