// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// What else a program asks a CUDA machine for: the version of cuFile.
#include "tests/support/cuda_standin/driver_calls.h"

SPILLWAY_STANDIN_EXPORT int cuFileGetVersion(int* version) {
    *version = 1150;
    return 0;
}
