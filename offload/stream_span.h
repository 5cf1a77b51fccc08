// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include "cuda/device.h"
#include "offload/step_trace.h"

namespace spillway::offload {

/// An event of what is queued on a stream while this object lives, from when the stream comes to it
/// until it is through: measured on the stream itself. Queues nothing if the row records nothing.
class StreamSpan {
  public:
    StreamSpan(cuda::Stream& stream, TraceRow row, const char* name, TraceNumbers numbers = {})
        : stream_(stream), row_(row) {
        if (row_.records())
            stream_.launch("trace", [row, name, numbers] { row.begin(name, numbers); });
    }
    ~StreamSpan() {
        if (!row_.records())
            return;
        try {
            stream_.launch("trace", [row = row_] { row.end(); });
        } catch (...) {
            // The stream has failed: whoever waits for it is told, and the event stays open.
        }
    }
    StreamSpan(const StreamSpan&) = delete;
    StreamSpan& operator=(const StreamSpan&) = delete;

  private:
    cuda::Stream& stream_;
    TraceRow row_;
};

}  // namespace spillway::offload
