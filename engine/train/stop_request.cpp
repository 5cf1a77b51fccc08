// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/stop_request.h"

#include <atomic>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace spillway::engine {
namespace {

// Blocking the signals and asking for them (signalfd) would need no such variables, but OpenBLAS
// starts threads before main() that do not block them, and the system would end the process there.
std::atomic<bool> in_use{false};
std::atomic<bool> seen{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may touch nothing else");

void note_signal(int) {
    seen.store(true);
}

void install(int signal, struct sigaction& former) {
    struct sigaction action {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (::sigaction(signal, &action, &former) != 0)
        throw std::system_error(errno, std::generic_category(), "sigaction");
}

}  // namespace

StopRequest::StopRequest() {
    if (in_use.exchange(true))
        throw std::logic_error("a process has one StopRequest at a time");
    seen.store(false);
    install(SIGINT, former_interrupt_);
    install(SIGTERM, former_terminate_);
}

StopRequest::~StopRequest() {
    ::sigaction(SIGINT, &former_interrupt_, nullptr);
    ::sigaction(SIGTERM, &former_terminate_, nullptr);
    in_use.store(false);
}

bool StopRequest::requested() const noexcept {
    return seen.load();
}

}  // namespace spillway::engine
