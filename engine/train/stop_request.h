// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <signal.h>

namespace spillway::engine {

/// SIGINT and SIGTERM as a question that is asked between steps, however often they come. One at a
/// time in a process: a signal handler has no other place for what it saw than one of the program's
/// own. At its end the former handling is restored.
class StopRequest {
  public:
    /// Throws std::logic_error if there is one already, std::system_error if the system refuses.
    StopRequest();
    ~StopRequest();
    StopRequest(const StopRequest&) = delete;
    StopRequest& operator=(const StopRequest&) = delete;

    /// Whether such a signal came since construction. From any thread.
    [[nodiscard]] bool requested() const noexcept;

  private:
    struct sigaction former_interrupt_ {};
    struct sigaction former_terminate_ {};
};

}  // namespace spillway::engine
