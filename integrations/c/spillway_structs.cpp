// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/c/detail/handle.h"
#include "integrations/c/detail/sized_struct.h"
#include "integrations/c/detail/translate.h"
#include "integrations/c/spillway.h"

using spillway::c_face::without_handle;
using spillway::c_face::write_struct;

uint32_t spillway_abi_version(void) {
    return SPILLWAY_ABI_VERSION;
}

const char* spillway_version(void) {
    return SPILLWAY_VERSION;
}

const char* spillway_status_text(spillway_status status) {
    switch (status) {
        case SPILLWAY_OK:
            return "done";
        case SPILLWAY_INVALID_ARGUMENT:
            return "an argument has a value that is not allowed";
        case SPILLWAY_WRONG_ORDER:
            return "the call is not possible at this point";
        case SPILLWAY_PLAN_REFUSED:
            return "too little memory or disk";
        case SPILLWAY_FOLDER_REFUSED:
            return "the folder cannot be used";
        case SPILLWAY_NONFINITE_GRADIENT:
            return "a gradient holds an infinity or a NaN";
        case SPILLWAY_INTEGRITY_ERROR:
            return "stored bytes do not match their checksum";
        case SPILLWAY_IO_ERROR:
            return "the system reported an error";
        case SPILLWAY_OUT_OF_MEMORY:
            return "out of memory";
        case SPILLWAY_FORKED_CHILD:
            return "the optimizer belongs to the process that forked this one";
        case SPILLWAY_FAILED:
            return "failed";
        default:
            return "no status of this version";
    }
}

spillway_status spillway_parameter_init(spillway_parameter* parameter, uint64_t struct_bytes) {
    return without_handle([&] {
        write_struct(parameter, struct_bytes, spillway::c_face::default_parameter(), "parameter");
    });
}

spillway_status spillway_group_init(spillway_group* group, uint64_t struct_bytes,
                                    spillway_optimizer_kind kind) {
    return without_handle(
        [&] { write_struct(group, struct_bytes, spillway::c_face::default_group(kind), "group"); });
}

spillway_status spillway_options_init(spillway_options* options, uint64_t struct_bytes) {
    return without_handle([&] {
        write_struct(options, struct_bytes, spillway::c_face::default_options(), "options");
    });
}

spillway_status spillway_step_rule_init(spillway_step_rule* rule, uint64_t struct_bytes) {
    return without_handle(
        [&] { write_struct(rule, struct_bytes, spillway::c_face::default_step_rule(), "rule"); });
}

spillway_status spillway_step_report_init(spillway_step_report* report, uint64_t struct_bytes) {
    return without_handle([&] {
        spillway_step_report empty{};
        empty.nonfinite_tensor = "";
        write_struct(report, struct_bytes, empty, "report");
    });
}

spillway_status spillway_statistics_init(spillway_statistics* statistics, uint64_t struct_bytes) {
    return without_handle(
        [&] { write_struct(statistics, struct_bytes, spillway_statistics{}, "statistics"); });
}
