// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// The header as C99 sees it, and what a C compiler makes of its structs' sizes, for the C++ test to
// compare with its own.

#include "integrations/c/spillway.h"

uint64_t spillway_test_c_struct_bytes(int which);

uint64_t spillway_test_c_struct_bytes(int which) {
    const uint64_t sizes[] = {sizeof(spillway_parameter),   sizeof(spillway_group),
                              sizeof(spillway_options),     sizeof(spillway_step_rule),
                              sizeof(spillway_step_report), sizeof(spillway_statistics)};
    return sizes[which];
}
