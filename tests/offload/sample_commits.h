// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nvme/io_queue.h"
#include "offload/commit_table.h"

namespace spillway::testing {

inline constexpr offload::CommitTableShape sample_shape{.tiles = 5, .tensors = 3};

inline offload::RunId sample_run() {
    return offload::RunId::parse("0f8fad5b-d9cb-469f-a165-70867728950e");
}

/// A table in which every field differs, and differs from that of another sequence.
inline offload::CommitTable sample_table(std::uint64_t sequence,
                                         const offload::CommitTableShape& shape = sample_shape) {
    offload::CommitTable table;
    table.sequence = sequence;
    table.iteration = 100 * sequence;
    table.update = 100 * sequence - 1;
    for (std::uint64_t tensor = 0; tensor < shape.tensors; ++tensor)
        table.tensor_steps.push_back(1000 * sequence + tensor);
    std::uint64_t next = sequence << 32U;
    table.stored = shape.planes;
    for (const auto id : shape.planes) {
        auto& plane = table.planes[offload::index_of(id)];
        for (std::uint64_t tile = 0; tile < shape.tiles; ++tile) {
            plane.copies.push_back(static_cast<std::uint8_t>((tile + sequence) % 2));
            plane.checksums.push_back(next++);
        }
    }
    for (std::uint64_t factor = 0; factor < shape.factors; ++factor)
        table.factors.push_back(static_cast<float>(sequence) + 0.125F * static_cast<float>(factor));
    table.client_state = "data position " + std::to_string(sequence);
    return table;
}

inline bool same(const offload::CommitTable& a, const offload::CommitTable& b) {
    for (std::size_t plane = 0; plane < a.planes.size(); ++plane)
        if (a.planes[plane].copies != b.planes[plane].copies ||
            a.planes[plane].checksums != b.planes[plane].checksums)
            return false;
    return a.stored == b.stored && a.sequence == b.sequence && a.iteration == b.iteration &&
           a.update == b.update && a.tensor_steps == b.tensor_steps && a.factors == b.factors &&
           a.client_state == b.client_state;
}

/// A queue onto the real drive.
inline std::unique_ptr<nvme::IoQueue> real_queue() {
    return std::make_unique<nvme::IoQueue>(nvme::make_backend(nvme::BackendKind::threads, 4),
                                           nvme::IoQueue::Options{});
}

/// The text of the exception that `action` throws; empty if it throws none.
template <typename Action>
std::string error_of(Action&& action) {
    try {
        std::forward<Action>(action)();
    } catch (const std::exception& error) {
        return error.what();
    }
    return {};
}

inline std::string file_text(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void set_file_text(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

}  // namespace spillway::testing
