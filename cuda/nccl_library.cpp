// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/nccl_library.h"

#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "cuda/shared_library.h"

namespace spillway::cuda {
namespace {

const char* advice(nccl::Result result) noexcept {
    switch (result) {
        case nccl::unhandled_cuda_error:
            return "a device or its driver failed; see the kernel's log, then start all ranks "
                   "again";
        case nccl::invalid_argument:
        case nccl::invalid_usage:
            return "every rank needs a device of its own and must make the same calls in one order";
        case nccl::remote_error:
            return "another rank has ended or cannot be reached: see what it says, then start all "
                   "ranks again from the last commit";
        default:
            return "run with NCCL_DEBUG=WARN in the environment to see what NCCL met";
    }
}

}  // namespace

std::shared_ptr<const NcclLibrary> NcclLibrary::load(const std::string& library) {
    auto [loaded, refusal] = load_library(library);
    if (loaded == nullptr)
        throw NcclUnavailable(
            fmt::format("no NCCL ({}); install libnccl2, or use one device", refusal));
    const auto symbol = [&, handle = loaded.get()](const char* name) {
        void* const found = ::dlsym(handle, name);
        if (found == nullptr)
            throw NcclUnavailable(fmt::format(
                "'{}' is no NCCL of version 2.14 or later: it has no '{}'; install a newer NCCL",
                library, name));
        return found;
    };
    nccl::Functions functions;
#define SPILLWAY_NCCL_FIND(name, in_library, result, parameters) \
    functions.name = reinterpret_cast<decltype(functions.name)>(symbol(#in_library));
    SPILLWAY_NCCL_FUNCTIONS(SPILLWAY_NCCL_FIND)
#undef SPILLWAY_NCCL_FIND
    return std::make_shared<const NcclLibrary>(std::move(loaded), functions);
}

std::string NcclLibrary::describe(std::string_view call, nccl::Result result,
                                  nccl::CommunicatorHandle communicator) const {
    const char* const text = functions_.error_text(result);
    const char* const last = functions_.last_error(communicator);
    const std::string said = last != nullptr ? last : "";
    return fmt::format("{} failed with '{}' ({}){}; {}", call, text != nullptr ? text : "unknown",
                       result, said.empty() ? "" : ": " + said, advice(result));
}

}  // namespace spillway::cuda
