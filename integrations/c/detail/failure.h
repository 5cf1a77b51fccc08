// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "integrations/c/spillway_types.h"

namespace spillway::c_face {

/// What went wrong, as the C interface says it.
struct Failure {
    spillway_status status = SPILLWAY_FAILED;
    std::string text;  ///< empty if there was no memory for it
};

/// Of the exception being handled. Never throws.
[[nodiscard]] Failure current_failure() noexcept;

/// The last failure per thread, so that no thread reads a text while another replaces it. A text
/// stays where it is until the same thread's next one. Thread-safe.
class FailureTexts {
  public:
    void keep(std::string text) noexcept;
    [[nodiscard]] const char* of_this_thread() const noexcept;

  private:
    mutable std::mutex mutex_;
    std::unordered_map<std::thread::id, std::string> texts_;  ///< nodes do not move
};

/// Failures that have no optimizer to hold them.
void keep_thread_text(std::string_view text) noexcept;
[[nodiscard]] const char* thread_text() noexcept;

/// Throws std::invalid_argument if `pointer` is null; `name` is the argument's.
void require(const void* pointer, const char* name);
/// The value of a flag. Throws std::invalid_argument on anything but 0 and 1.
[[nodiscard]] bool flag(std::int32_t value, const char* name);

}  // namespace spillway::c_face
