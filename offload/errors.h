// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <stdexcept>

namespace spillway::offload {

/// A stored tile does not match its checksum. The text names tensor, tile, plane, path and offset,
/// and what is lost. The engine is poisoned: no further commit; a restart resumes from the last
/// one.
class IntegrityError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// A gradient that must be finite is not; the text names the tensor.
class NonfiniteGradient : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// The user asked for something that cannot be: another run's folder, a locked folder, an old copy.
class FolderRefused : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// begin_step() met its stop token before the step had begun.
class StepStopped : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// A move of the state to other drives was asked to stop; the state is where it was.
class RelocationStopped : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace spillway::offload
