// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cuda/nccl_api.h"

namespace spillway::cuda {

/// There is no NCCL that can be used; what() says why and what to do.
class NcclUnavailable : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// NCCL, loaded when it is asked for: nothing is linked against it. Thread-safe.
class NcclLibrary {
  public:
    static constexpr std::string_view default_name = "libnccl.so.2";

    /// Loads `library` (by the rules of dlopen) and finds every function. Throws NcclUnavailable.
    [[nodiscard]] static std::shared_ptr<const NcclLibrary> load(const std::string& library);

    /// `loaded` is let go with the last owner.
    NcclLibrary(std::shared_ptr<void> loaded, const nccl::Functions& functions)
        : library_(std::move(loaded)), functions_(functions) {}

    [[nodiscard]] const nccl::Functions* operator->() const noexcept { return &functions_; }

    /// "ncclAllReduce failed with 'remote process exited or there was a network error' (6): ...;"
    /// with what the library said last, if anything, and what to do. `communicator` may be null.
    [[nodiscard]] std::string describe(std::string_view call, nccl::Result result,
                                       nccl::CommunicatorHandle communicator) const;

  private:
    std::shared_ptr<void> library_;
    nccl::Functions functions_;
};

}  // namespace spillway::cuda
