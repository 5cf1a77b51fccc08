// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/cuda_core.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "cuda/kernel_names.h"

namespace spillway::cuda {

CurrentContext::CurrentContext(const Driver& driver, driver::ContextHandle context)
    : driver_(driver) {
    driver_.check(driver_->context_push(context), "cuCtxPushCurrent", "using a CUDA device");
}

CurrentContext::~CurrentContext() {
    driver::ContextHandle popped = nullptr;
    driver_->context_pop(&popped);
}

CudaCore::CudaCore(std::shared_ptr<const Driver> driver, int ordinal)
    : driver_(std::move(driver)), name_(fmt::format("cuda:{}", ordinal)) {
    const auto purpose = "device " + name_;
    driver_->check((*driver_)->device_get(&id_, ordinal), "cuDeviceGet", purpose);
    // The primary context is the one that every other library in the process uses as well.
    driver_->check((*driver_)->context_retain(&context_, id_), "cuDevicePrimaryCtxRetain", purpose);
}

CudaCore::~CudaCore() {
    try {
        const auto scope = current();
        for (const auto& events : {timing_events_, plain_events_})
            for (const auto event : events)
                (*driver_)->event_destroy(event);
        if (module_ != nullptr)
            (*driver_)->module_unload(module_);
    } catch (const DriverError&) {
        // A lost context takes all of it along.
    }
    (*driver_)->context_release(id_);
}

void CudaCore::check(driver::Result result, std::string_view call, std::string_view purpose) const {
    if (result == driver::success)
        return;
    auto text = fmt::format("device {}: {}: {} failed with {}", name_, purpose, call,
                            driver_->describe(result));
    if (is_sticky(result)) {
        const std::scoped_lock lock(mutex_);
        if (lost_.empty()) {
            lost_ = text;
            text +=
                "; work queued before it went wrong and the device's context is lost: start the "
                "process again";
        } else {
            text += fmt::format("; the context was lost before ({})", lost_);
        }
    }
    throw DriverError(text, result);
}

// ---------------------------------------------------------------- kernels

void CudaCore::load_kernels(const void* image) {
    std::array<char, 4096> log{};
    std::array<int, 2> options{driver::jit_error_log, driver::jit_error_log_bytes};
    // The interface takes numbers as pointers.
    std::array<void*, 2> values{log.data(), reinterpret_cast<void*>(log.size())};
    const auto scope = current();
    const auto result = (*driver_)->module_load(
        &module_, image, static_cast<unsigned>(options.size()), options.data(), values.data());
    log.back() = '\0';
    check(result, "cuModuleLoadDataEx",
          log.front() == '\0' ? std::string("loading the kernels")
                              : fmt::format("loading the kernels ({})", log.data()));
    find_kernels();
}

void CudaCore::find_kernels() {
    for (const char* const name : kernel_names()) {
        driver::FunctionHandle function = nullptr;
        check((*driver_)->module_function(&function, module_, name), "cuModuleGetFunction",
              fmt::format("kernel '{}'", name));
        kernels_.emplace(name, function);
    }
}

driver::FunctionHandle CudaCore::kernel(const char* name) const {
    const auto found = kernels_.find(name);
    if (found == kernels_.end())
        throw std::logic_error(
            fmt::format("device {}: kernel '{}' was asked for, which was not loaded", name_, name));
    return found->second;
}

// ---------------------------------------------------------------- events

driver::EventHandle CudaCore::take_event(unsigned flags) {
    {
        const std::scoped_lock lock(mutex_);
        auto& free = flags == driver::event_default ? timing_events_ : plain_events_;
        if (!free.empty()) {
            const auto event = free.back();
            free.pop_back();
            return event;
        }
    }
    driver::EventHandle event = nullptr;
    const auto scope = current();
    check((*driver_)->event_create(&event, flags), "cuEventCreate", "an event");
    return event;
}

void CudaCore::return_event(driver::EventHandle event, unsigned flags) noexcept {
    try {
        const std::scoped_lock lock(mutex_);
        (flags == driver::event_default ? timing_events_ : plain_events_).push_back(event);
    } catch (const std::bad_alloc&) {
        (*driver_)->event_destroy(event);
    }
}

// ---------------------------------------------------------------- page-locked memory

namespace {

struct PageLocked {
    std::mutex mutex;
    std::map<const std::byte*, std::size_t> pieces;  ///< beginning to bytes; none overlap
};

PageLocked& page_locked() {
    static PageLocked of_the_process;
    return of_the_process;
}

}  // namespace

void CudaCore::add_registration(const std::byte* data, std::size_t bytes) {
    const std::scoped_lock lock(page_locked().mutex);
    page_locked().pieces.emplace(data, bytes);
}

void CudaCore::remove_registration(const std::byte* data) noexcept {
    const std::scoped_lock lock(page_locked().mutex);
    page_locked().pieces.erase(data);
}

std::size_t CudaCore::bytes_to_edge(const std::byte* data, std::size_t bytes) {
    const std::scoped_lock lock(page_locked().mutex);
    const auto& pieces = page_locked().pieces;
    const auto next = pieces.upper_bound(data);
    if (next != pieces.begin()) {
        const auto& [begin, length] = *std::prev(next);
        const auto past = static_cast<std::size_t>(data - begin);
        if (past < length)
            return std::min(bytes, length - past);
    }
    if (next == pieces.end())
        return bytes;
    return std::min(bytes, static_cast<std::size_t>(next->first - data));
}

}  // namespace spillway::cuda
