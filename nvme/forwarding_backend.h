// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nvme/io_backend.h"

namespace spillway::nvme {

/// Another backend, and what a class derived from this one does beside it: it overrides what it
/// looks at.
class ForwardingBackend : public IoBackend {
  public:
    [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
    [[nodiscard]] std::size_t depth() const noexcept override { return inner_->depth(); }
    [[nodiscard]] bool moves(MemoryKind memory) const noexcept override {
        return inner_->moves(memory);
    }
    [[nodiscard]] std::vector<std::string> use_fixed(const FixedResources& fixed) override {
        return inner_->use_fixed(fixed);
    }
    std::size_t submit(std::span<const BackendOperation> operations) override {
        return inner_->submit(operations);
    }
    std::size_t wait(std::span<BackendCompletion> completions) override {
        return inner_->wait(completions);
    }
    void wake() noexcept override { inner_->wake(); }

  protected:
    explicit ForwardingBackend(std::unique_ptr<IoBackend> inner) : inner_(std::move(inner)) {}
    [[nodiscard]] IoBackend& inner() const noexcept { return *inner_; }

  private:
    std::unique_ptr<IoBackend> inner_;
};

}  // namespace spillway::nvme
