// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/c/detail/handle.h"

#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace {

std::uint64_t product(const std::vector<std::uint64_t>& shape) {
    std::uint64_t elements = 1;
    for (const auto length : shape)
        elements *= length;  // the core has refused what overflows
    return elements;
}

}  // namespace

spillway_optimizer::spillway_optimizer(std::vector<spillway::offload::Parameter> parameters,
                                       spillway::offload::HyperGroups groups,
                                       spillway::offload::TensorOptimizerOptions options)
    : owner(::getpid()),
      core(std::move(parameters), std::move(groups), std::move(options)),
      backend_name(core.io_backend_name()) {
    for (const auto& parameter : core.parameters()) {
        tensors.emplace(parameter.name, static_cast<std::uint32_t>(elements.size()));
        elements.push_back(product(parameter.shape));
    }
}

std::uint64_t spillway_optimizer::elements_of(std::uint32_t tensor) const {
    if (tensor >= elements.size())
        throw std::invalid_argument(
            fmt::format("tensor is {}; there are {}, numbered from 0", tensor, elements.size()));
    return elements[tensor];
}

namespace spillway::c_face {

bool is_of_this_process(const spillway_optimizer& optimizer) noexcept {
    return optimizer.owner == ::getpid();
}

spillway_status check_handle(const spillway_optimizer* optimizer) noexcept {
    if (optimizer == nullptr) {
        keep_thread_text("optimizer is NULL; make one with spillway_optimizer_create()");
        return SPILLWAY_INVALID_ARGUMENT;
    }
    // Nothing of the handle is touched: another thread may have held its locks at the fork.
    return is_of_this_process(*optimizer) ? SPILLWAY_OK : SPILLWAY_FORKED_CHILD;
}

}  // namespace spillway::c_face
