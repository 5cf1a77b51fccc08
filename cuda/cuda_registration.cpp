// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cuda_registration.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "cuda/host_mapping.h"

namespace spillway::cuda {

CudaRegistration::CudaRegistration(std::shared_ptr<CudaCore> core, std::byte* data,
                                   std::size_t bytes, std::size_t piece_bytes)
    : core_(std::move(core)) {
    // Two registrations may not share a page.
    if (reinterpret_cast<std::uintptr_t>(data) % page_bytes != 0 || bytes % page_bytes != 0)
        throw std::invalid_argument(fmt::format(
            "page-locking {} bytes at {}: both must be multiples of {}; lock whole pages", bytes,
            static_cast<void*>(data), page_bytes));
    const std::size_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
    pieces_.reserve(pieces);
    const auto scope = core_->current();
    while (bytes_ < bytes) {
        const auto piece = std::min(piece_bytes, bytes - bytes_);
        const auto result =
            core_->driver()->host_register(data + bytes_, piece, driver::register_portable);
        if (result != driver::success) {
            const auto purpose = fmt::format(
                "page-locking piece {} of {} ({} bytes at offset {} of {}; the pieces before it "
                "are "
                "undone; raise the memlock limit or use less host memory)",
                pieces_.size() + 1, pieces, piece, bytes_, bytes);
            undo();
            core_->check(result, "cuMemHostRegister", purpose);
        }
        core_->add_registration(data + bytes_, piece);
        pieces_.push_back(data + bytes_);
        bytes_ += piece;
    }
}

CudaRegistration::~CudaRegistration() {
    undo();
}

void CudaRegistration::undo() noexcept {
    try {
        const auto scope = core_->current();
        while (!pieces_.empty()) {
            core_->remove_registration(pieces_.back());
            core_->driver()->host_unregister(pieces_.back());
            pieces_.pop_back();
        }
    } catch (const DriverError&) {
        // A lost context holds no pages.
    }
    bytes_ = 0;
}

}  // namespace spillway::cuda
