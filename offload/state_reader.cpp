// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/state_reader.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "nvme/huge_page_arena.h"
#include "offload/commit_log.h"
#include "offload/detail/drives/drive_files.h"
#include "offload/detail/drives/tile_store.h"
#include "offload/detail/state/manifest_layout.h"
#include "offload/detail/state/master_reader.h"
#include "offload/detail/state/state_verifier.h"
#include "offload/offload_engine.h"

namespace spillway::offload {
namespace {

constexpr std::size_t tiles_at_once = 32;

}  // namespace

class StateReader::Impl {
  public:
    Impl(const std::filesystem::path& out, nvme::BackendKind backend)
        : folder_(StateFolder::open(out, LockMode::shared_read)),
          order_(folder_.manifest().tensors),
          queues_(folder_.extents_folders().size(), {.every_drive = {.backend = backend}}),
          commit_(newest_commit()),
          store_(detail::open_to_read(folder_, queues_), detail::extent_map_of(folder_.manifest()),
                 order_, detail::durability_of(folder_.manifest()), folder_.manifest().planes),
          buffer_(detail::MasterReader::buffer_bytes(tiles_at_once)),
          masters_(
              store_, [](Plane, std::uint64_t) { return nullptr; }, cpu_optim::best_isa(),
              buffer_.bytes()) {
        store_.load(commit_);
    }

    void visit(ElementRange range, WeightKind kind, const Visitor& visit) {
        if (kind == WeightKind::averaged && !manifest().planes.contains(Plane::average))
            throw std::logic_error("the run keeps no average of its weights");
        masters_.visit(range, kind, visit);
    }

    VerifyReport verify() { return detail::verify_store(store_, queues_.ended()); }

    [[nodiscard]] const Manifest& manifest() const noexcept { return folder_.manifest(); }
    [[nodiscard]] const ElementOrder& order() const noexcept { return order_; }
    [[nodiscard]] const CommitTable& commit() const noexcept { return commit_; }

  private:
    CommitTable newest_commit() {
        CommitLog log(queues_.front(), folder_.folder(), folder_.manifest().run,
                      detail::table_shape_of(folder_.manifest()), CommitLog::Start::open_read_only,
                      folder_.manifest().generation);
        auto found = log.recover();
        if (!found)
            folder_.check_commit(0);
        if (!found)
            throw FolderRefused(
                fmt::format("{}: this run has no commit yet, so there is nothing to read",
                            folder_.folder().string()));
        if (found->condition == CommitLog::Recovered::Condition::dirty)
            throw FolderRefused(
                fmt::format("{}: this run was made with --durable off and did not end cleanly; its "
                            "state is not whole",
                            folder_.folder().string()));
        folder_.check_commit(found->table.sequence, found->warning);
        return std::move(found->table);
    }

    StateFolder folder_;
    ElementOrder order_;
    detail::DriveQueues queues_;
    CommitTable commit_;
    detail::TileStore store_;
    nvme::HugePageArena buffer_;
    detail::MasterReader masters_;
};

StateReader::StateReader(const std::filesystem::path& out, nvme::BackendKind backend)
    : impl_(std::make_unique<Impl>(out, backend)) {}
StateReader::~StateReader() = default;

const Manifest& StateReader::manifest() const noexcept {
    return impl_->manifest();
}
const ElementOrder& StateReader::order() const noexcept {
    return impl_->order();
}
const CommitTable& StateReader::commit() const noexcept {
    return impl_->commit();
}
void StateReader::visit_tensor(TensorId tensor, const Visitor& visit, WeightKind kind) {
    impl_->visit(impl_->order().range(tensor), kind, visit);
}
void StateReader::visit_all(const Visitor& visit, WeightKind kind) {
    impl_->visit({0, impl_->order().length()}, kind, visit);
}
VerifyReport StateReader::verify() {
    return impl_->verify();
}

}  // namespace spillway::offload
