// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "integrations/c/detail/failure.h"
#include "offload/tensor_optimizer.h"

/// What the C interface's opaque pointer points to.
struct spillway_optimizer {
    spillway_optimizer(std::vector<spillway::offload::Parameter> parameters,
                       spillway::offload::HyperGroups groups,
                       spillway::offload::TensorOptimizerOptions options);

    /// Throws std::invalid_argument on a number that is none of a tensor.
    [[nodiscard]] std::uint64_t elements_of(std::uint32_t tensor) const;

    const pid_t owner;  ///< the process whose threads the core has
    spillway::offload::TensorOptimizer core;
    std::vector<std::uint64_t> elements;                          ///< per tensor
    std::unordered_map<std::string_view, std::uint32_t> tensors;  ///< by name, which the core holds
    std::string backend_name;
    std::string nonfinite_tensor;  ///< of the last report
    std::string recovered_client_state;
    mutable spillway::c_face::FailureTexts failures;
};

namespace spillway::c_face {

[[nodiscard]] bool is_of_this_process(const spillway_optimizer& optimizer) noexcept;
/// SPILLWAY_INVALID_ARGUMENT or SPILLWAY_FORKED_CHILD if no call can be made on it.
[[nodiscard]] spillway_status check_handle(const spillway_optimizer* optimizer) noexcept;

/// Runs `call()` and turns whatever it throws into a status and a text.
template <class Call>
[[nodiscard]] spillway_status without_handle(Call&& call) noexcept {
    try {
        call();
        return SPILLWAY_OK;
    } catch (...) {
        auto failure = current_failure();
        keep_thread_text(failure.text);
        return failure.status;
    }
}

/// Runs `call(*optimizer)` likewise; the text goes to the optimizer.
template <class Handle, class Call>
[[nodiscard]] spillway_status with_handle(Handle* optimizer, Call&& call) noexcept {
    if (const auto status = check_handle(optimizer); status != SPILLWAY_OK)
        return status;
    try {
        call(*optimizer);
        return SPILLWAY_OK;
    } catch (...) {
        auto failure = current_failure();
        optimizer->failures.keep(std::move(failure.text));
        return failure.status;
    }
}

}  // namespace spillway::c_face
