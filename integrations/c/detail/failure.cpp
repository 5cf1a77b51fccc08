// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/c/detail/failure.h"

#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "offload/errors.h"
#include "offload/plan.h"
#include "offload/state_folder.h"

namespace spillway::c_face {

namespace {

std::string& text_of_thread() noexcept {
    thread_local std::string text;
    return text;
}

Failure failure(spillway_status status, const std::exception& error) {
    return {status, error.what()};
}

Failure classify() {
    try {
        throw;
    } catch (const offload::PlanRefused& error) {
        return failure(SPILLWAY_PLAN_REFUSED, error);
    } catch (const offload::FolderRefused& error) {
        return failure(SPILLWAY_FOLDER_REFUSED, error);
    } catch (const offload::NonfiniteGradient& error) {
        return failure(SPILLWAY_NONFINITE_GRADIENT, error);
    } catch (const offload::IntegrityError& error) {
        return failure(SPILLWAY_INTEGRITY_ERROR, error);
    } catch (const std::system_error& error) {
        return failure(SPILLWAY_IO_ERROR, error);
    } catch (const std::invalid_argument& error) {
        return failure(SPILLWAY_INVALID_ARGUMENT, error);
    } catch (const std::out_of_range& error) {
        return failure(SPILLWAY_INVALID_ARGUMENT, error);
    } catch (const std::length_error& error) {
        return failure(SPILLWAY_INVALID_ARGUMENT, error);
    } catch (const std::logic_error& error) {
        return failure(SPILLWAY_WRONG_ORDER, error);
    } catch (const std::bad_alloc&) {
        return {SPILLWAY_OUT_OF_MEMORY, "out of memory"};
    } catch (const std::exception& error) {
        return failure(SPILLWAY_FAILED, error);
    } catch (...) {
        return {SPILLWAY_FAILED, "an error of unknown type"};
    }
}

}  // namespace

Failure current_failure() noexcept {
    try {
        return classify();
    } catch (...) {  // no memory to copy the text
        return {SPILLWAY_OUT_OF_MEMORY, {}};
    }
}

void FailureTexts::keep(std::string text) noexcept {
    const std::lock_guard lock(mutex_);
    const auto id = std::this_thread::get_id();
    try {
        texts_[id] = std::move(text);
    } catch (...) {  // no memory for the entry: the thread has no text then, rather than an old one
    }
}

const char* FailureTexts::of_this_thread() const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = texts_.find(std::this_thread::get_id());
    return found == texts_.end() ? "" : found->second.c_str();
}

void keep_thread_text(std::string_view text) noexcept {
    try {
        text_of_thread() = text;
    } catch (...) {  // no memory for it: none, rather than an old one
        text_of_thread().clear();
    }
}

const char* thread_text() noexcept {
    return text_of_thread().c_str();
}

void require(const void* pointer, const char* name) {
    if (pointer == nullptr)
        throw std::invalid_argument(fmt::format("{} is NULL; it must point to something", name));
}

bool flag(std::int32_t value, const char* name) {
    if (value != 0 && value != 1)
        throw std::invalid_argument(fmt::format("{} is {}; a flag is 0 or 1", name, value));
    return value == 1;
}

}  // namespace spillway::c_face
