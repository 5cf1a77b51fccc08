// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nvme/io_backend.h"
#include "offload/commit_table.h"
#include "offload/element_order.h"
#include "offload/state_folder.h"

namespace spillway::offload {

/// What a full check of a state folder found.
struct VerifyReport {
    std::uint64_t tiles_checked = 0;
    std::uint64_t bytes_checked = 0;
    double wall_s = 0;
    std::vector<std::string>
        damage;  ///< one sentence a bad tile: tensor, tile, plane, path, offset; empty: whole
};

/// Reads the newest commit of a run that no engine is using, in bounded memory. Refuses a locked
/// folder, one without a commit, and a dirty one, by name. Not thread-safe.
class StateReader {
  public:
    StateReader(const std::filesystem::path& out, nvme::BackendKind backend);
    ~StateReader();
    StateReader(const StateReader&) = delete;
    StateReader& operator=(const StateReader&) = delete;

    [[nodiscard]] const Manifest& manifest() const noexcept;
    [[nodiscard]] const ElementOrder& order() const noexcept;
    [[nodiscard]] const CommitTable& commit() const noexcept;

    /// The fp32 masters of one tensor (or, with visit_all, of every tensor in order), or their
    /// average, in pieces; every tile is verified first (IntegrityError). Throws std::logic_error
    /// if no average is kept; before the first update that it took up it is 0.
    using Visitor =
        std::function<void(TensorId tensor, std::uint64_t first, std::span<const float> values)>;
    void visit_tensor(TensorId tensor, const Visitor& visit, WeightKind kind = WeightKind::newest);
    void visit_all(const Visitor& visit, WeightKind kind = WeightKind::newest);

    /// Checks every plane of every tile.
    [[nodiscard]] VerifyReport verify();

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace spillway::offload
