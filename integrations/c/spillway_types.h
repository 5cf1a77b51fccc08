// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <stdint.h>

// The values and structs of spillway.h (C99).
//
// A struct begins with its own size as the caller compiled it, so that later versions can add
// fields at its end: fill it by its _init function, then change fields. A size below that of
// version 1, and a larger struct than the library knows with anything but zeros behind, are
// refused. Strings are UTF-8 and end with a NUL. "flag": 0 or 1, any other value is refused.

#ifdef __cplusplus
extern "C" {
#endif

#define SPILLWAY_ABI_VERSION 1

typedef int32_t spillway_status;
enum {
    SPILLWAY_OK = 0,
    SPILLWAY_INVALID_ARGUMENT = 1,    // a value; nothing has changed
    SPILLWAY_WRONG_ORDER = 2,         // a call that is not possible now; nothing has changed
    SPILLWAY_PLAN_REFUSED = 3,        // too little memory or disk; the text has the bytes
    SPILLWAY_FOLDER_REFUSED = 4,      // a folder that is in use, another run's, an old copy
    SPILLWAY_NONFINITE_GRADIENT = 5,  // under SPILLWAY_NONFINITE_STOP; nothing has changed
    SPILLWAY_INTEGRITY_ERROR = 6,     // stored bytes do not match their checksum
    SPILLWAY_IO_ERROR = 7,            // the system's own error
    SPILLWAY_OUT_OF_MEMORY = 8,
    SPILLWAY_FORKED_CHILD = 9,  // the handle belongs to the process that forked this one
    SPILLWAY_FAILED = 10        // anything else; the text says what
};

typedef int32_t spillway_parameter_type;
enum {
    SPILLWAY_PARAMETER_FP32 = 0,  // its own master
    SPILLWAY_PARAMETER_BF16 = 1   // a kept residue makes it an exact fp32 master
};

typedef int32_t spillway_gradient_type;
enum { SPILLWAY_GRADIENT_FP32 = 0, SPILLWAY_GRADIENT_BF16 = 1, SPILLWAY_GRADIENT_FP16 = 2 };

// cpu_optim/elementwise.h and layerwise.h have the definitions and the papers.
typedef int32_t spillway_optimizer_kind;
enum {
    SPILLWAY_ADAMW = 0,  // decoupled weight decay
    SPILLWAY_ADAM = 1,   // weight decay as an l2 term of the gradient
    SPILLWAY_SGD = 2,
    SPILLWAY_ADAGRAD = 3,
    SPILLWAY_LION = 4,
    SPILLWAY_RMSPROP = 5,
    SPILLWAY_LAMB = 6,  // this and LARS move a tensor by its norms: two passes
    SPILLWAY_LARS = 7,  // added to version 1
    // A number for each row and column of a matrix (cpu_optim/adafactor.h): three passes. Added to
    // version 1
    SPILLWAY_ADAFACTOR = 8
};

typedef int32_t spillway_nonfinite_rule;
enum {
    SPILLWAY_NONFINITE_PROPAGATE = 0,  // infinities and NaN go into the weights
    SPILLWAY_NONFINITE_SKIP = 1,       // the step changes nothing
    SPILLWAY_NONFINITE_STOP = 2        // SPILLWAY_NONFINITE_GRADIENT naming the tensor
};

typedef int32_t spillway_isa;
enum {
    SPILLWAY_ISA_AUTO = 0,
    SPILLWAY_ISA_SCALAR = 1,
    SPILLWAY_ISA_AVX2 = 2,
    SPILLWAY_ISA_AVX512 = 3
};

typedef int32_t spillway_io_backend;
enum {
    SPILLWAY_IO_AUTO = 0,
    SPILLWAY_IO_URING = 1,
    SPILLWAY_IO_THREADS = 2,
    SPILLWAY_IO_LIBAIO = 3  // its library is loaded when it is asked for
};

// In which state is kept. What is not FP32 is lossy: values are rounded, stochastically where an
// update needs it, by a hash of `rounding_seed`, tensor, element and step. Not with amsgrad,
// centred or Adafactor.
typedef int32_t spillway_state_format;
enum {
    SPILLWAY_STATE_FP32 = 0,  // exact
    SPILLWAY_STATE_BF16 = 1,
    SPILLWAY_STATE_INT8 = 2  // companded, in blocks of 256 elements
};

typedef int32_t spillway_export_type;
enum { SPILLWAY_EXPORT_FP32 = 0, SPILLWAY_EXPORT_BF16 = 1 };

// A tensor whose values live in the caller's memory.
typedef struct spillway_parameter {
    uint64_t struct_bytes;
    const char* name;       // copied; not empty, no other parameter's
    const uint64_t* shape;  // copied; NULL if there are no dimensions (one element)
    uint64_t dimensions;
    // Row-major, without gaps; stays valid until spillway_rebind() or the optimizer's end. Steps
    // write it. May be NULL for a tensor without elements.
    void* data;
    spillway_parameter_type type;
    uint32_t group;  // index into the groups
} spillway_parameter;

// Hyper-parameters. A field that the kind of optimizer does not have must stay 0.
typedef struct spillway_group {
    uint64_t struct_bytes;
    spillway_optimizer_kind optimizer;
    int32_t amsgrad;   // flag; Adam, AdamW
    int32_t maximise;  // flag; all
    int32_t nesterov;  // flag; SGD; Adam, AdamW: NAdam, not with amsgrad
    int32_t centred;   // flag; RMSprop
    int32_t reserved;  // 0
    double learning_rate;
    double weight_decay;
    double beta1;                      // Adam, AdamW, Lion, LAMB
    double beta2;                      // Adam, AdamW, Lion, LAMB
    double epsilon;                    // Adam, AdamW, Adagrad, RMSprop, LAMB
    double momentum;                   // SGD, RMSprop, LARS
    double dampening;                  // SGD
    double learning_rate_decay;        // Adagrad
    double initial_accumulator_value;  // Adagrad
    double alpha;                      // RMSprop
    double momentum_decay;             // Adam, AdamW with nesterov; this and what follows: added to
                                       // version 1
    double trust_coefficient;          // LARS
    double least_weight_norm;          // LAMB
    double most_weight_norm;           // LAMB; infinity: any
    double beta2_decay;                // Adafactor; this and what follows: added to version 1
    double epsilon1;                   // Adafactor: least root of the second moment
    double epsilon2;                   // Adafactor: least root mean square of the weights
    double clip_threshold;             // Adafactor: most root mean square of an update
} spillway_group;

typedef struct spillway_options {
    uint64_t struct_bytes;
    uint64_t host_bytes;   // memory for state and staging together; without `nvme` all must fit
    uint64_t chunk_bytes;  // unit of placement, a multiple of 64 KiB; 0: chosen by the library
    uint64_t threads;      // of the update; 1 to 4096
    uint64_t io_depth;     // requests in flight; 1 to 4096
    const char* nvme;      // folder on a drive for the state that does not fit, or several, one a
                           // drive, by commas; NULL or "": none
    const char* out;       // folder for commits; NULL or "": none can be made
    const char* client_settings;  // a JSON object kept in the manifest of `out`; NULL: {}
    spillway_isa isa;
    spillway_io_backend io_backend;
    spillway_state_format state;  // this and what follows: added to version 1
    int32_t reserved;             // 0
    uint64_t rounding_seed;       // of lossy state
    const char* average;  // "ema:DECAY" or "swa:EVERY": a running average of each tensor's fp32
                          // masters beside its state; NULL or "off": none. Of a run in `out`
                          // DECAY alone may change. Added to version 1
} spillway_options;

typedef struct spillway_step_rule {
    uint64_t struct_bytes;
    double gradient_scale;  // on every gradient, before the norm
    double max_norm;        // if `clip`: scale by min(1, max_norm / (norm + 1e-6)); else 0
    int32_t clip;           // flag
    spillway_nonfinite_rule nonfinite;
} spillway_step_rule;

typedef struct spillway_step_report {
    uint64_t struct_bytes;
    double norm;                   // global 2-norm, scaled, before clipping; 0 without has_norm
    uint64_t nonfinite;            // elements; 0 if the rule did not need to look
    const char* nonfinite_tensor;  // the first that has one, "" if none; until the next step
    int32_t applied;               // flag; 0: the step was skipped
    int32_t has_norm;              // flag; whether the rule needed the norm
} spillway_step_report;

// Bytes moved and seconds spent since the optimizer was made.
typedef struct spillway_statistics {
    uint64_t struct_bytes;
    uint64_t nvme_read_bytes;
    uint64_t nvme_written_bytes;  // commit_bytes not included
    uint64_t commit_bytes;
    uint64_t host_bytes;            // allocated
    uint64_t state_bytes;           // at rest, in memory and on the drive
    uint64_t resident_state_bytes;  // of these, in memory
    double update_busy_s;           // arithmetic
    double update_wall_s;
    double stall_nvme_read_s;  // of the update, waiting for the drive
    double stall_nvme_write_s;
    double stall_gradient_s;  // of a streamed update, waiting for gradients
} spillway_statistics;

#ifdef __cplusplus
}
#endif
