// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

namespace spillway::nvme {

/// How a ring of io_uring is driven. Both departures from the default trade processor time for
/// latency: measure before choosing them. What the kernel or the drive refuses is left out with a
/// note (see IoQueue::notes()), never an error.
struct UringOptions {
    enum class Submission {
        system_call,    ///< one call hands over what was gathered
        kernel_thread,  ///< a thread of the kernel looks for requests (SQPOLL); it keeps a core
                        ///< busy
    };
    enum class Completion {
        interrupt,
        polled,  ///< looked for on the drive (IOPOLL) while transfers of registered direct files
                 ///< are in flight; needs a drive with poll queues; keeps a core busy
    };
    Submission submission = Submission::system_call;
    Completion completion = Completion::interrupt;
    unsigned kernel_thread_idle_ms = 20;  ///< without requests, until the kernel's thread sleeps
    /// IORING_FEAT_* bits to be taken as missing: how tests play an older kernel.
    unsigned hidden_features = 0;
};

}  // namespace spillway::nvme
