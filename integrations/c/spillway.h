// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <stdint.h>

#include "integrations/c/spillway_types.h"

// An optimizer over tensors that stay in the caller's memory, with its own state (moments,
// residues) over host memory and a drive. The C face of offload/tensor_optimizer.h; C99, stable
// across versions of the library with one SPILLWAY_ABI_VERSION (the number in its SONAME).
//
// Units: sizes are in bytes and named so, counts are elements, times are seconds.
// Ownership: the caller owns every pointer it passes; the library copies names, shapes and options,
// and keeps the data pointers of parameters and gradients only as long as said below. Pointers it
// gives belong to the optimizer.
// Threads: spillway_give_gradient() and spillway_last_error() from any thread; everything else on
// one optimizer from one thread at a time. Two optimizers share nothing.
// Errors: every call returns a status; nothing is printed, no call ends the process, no C++
// exception leaves. SPILLWAY_INVALID_ARGUMENT, _WRONG_ORDER and _NONFINITE_GRADIENT change nothing;
// after any failure of memory, I/O or integrity in mid-work the optimizer is of no further use:
// later calls give that first error, and the way back is the last commit. Output arguments are
// written only with SPILLWAY_OK.
// Processes: an optimizer belongs to the process that made it. In a forked child every call on it,
// spillway_optimizer_destroy() too, does nothing but return SPILLWAY_FORKED_CHILD.

#ifdef __cplusplus
extern "C" {
#endif

typedef struct spillway_optimizer spillway_optimizer;

#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

// SPILLWAY_ABI_VERSION of the library, to compare with the header's; its release ("0.1.0").
uint32_t spillway_abi_version(void);
const char* spillway_version(void);

// What a status means, in a few words; never NULL.
const char* spillway_status_text(spillway_status status);

// What the calling thread's last failed call on `optimizer` was about: the argument or thing, the
// value found, the value needed. With NULL: the calling thread's last failure that no optimizer can
// hold (its making, an _init, a NULL handle). "" if there was none. Never NULL; valid until the
// thread's next failed call on it, or the optimizer's end.
const char* spillway_last_error(const spillway_optimizer* optimizer);

// Fill a struct of `struct_bytes` (sizeof of the caller's) with the defaults; a group with those of
// torch.optim for its kind (learning rates 1e-3, Adagrad and RMSprop 1e-2, Lion 1e-4).
spillway_status spillway_parameter_init(spillway_parameter* parameter, uint64_t struct_bytes);
spillway_status spillway_group_init(spillway_group* group, uint64_t struct_bytes,
                                    spillway_optimizer_kind kind);
spillway_status spillway_options_init(spillway_options* options, uint64_t struct_bytes);
spillway_status spillway_step_rule_init(spillway_step_rule* rule, uint64_t struct_bytes);
spillway_status spillway_step_report_init(spillway_step_report* report, uint64_t struct_bytes);
spillway_status spillway_statistics_init(spillway_statistics* statistics, uint64_t struct_bytes);

// Tensors are numbered in the order given. All groups must be of one optimizer. On failure
// *optimizer is NULL and the text is that of spillway_last_error(NULL).
spillway_status spillway_optimizer_create(const spillway_parameter* parameters,
                                          uint64_t parameter_count, const spillway_group* groups,
                                          uint64_t group_count, const spillway_options* options,
                                          spillway_optimizer** optimizer);
// Ends work in flight. What was not committed is lost. NULL is allowed.
spillway_status spillway_optimizer_destroy(spillway_optimizer* optimizer);

spillway_status spillway_tensor_count(const spillway_optimizer* optimizer, uint64_t* count);
spillway_status spillway_find_tensor(const spillway_optimizer* optimizer, const char* name,
                                     uint32_t* tensor);
// Values of state per parameter: 0 to 3.
spillway_status spillway_state_planes(const spillway_optimizer* optimizer, uint64_t* planes);
// "io_uring", "libaio" or "threads".
spillway_status spillway_io_backend_name(const spillway_optimizer* optimizer, const char** name);
spillway_status spillway_get_statistics(const spillway_optimizer* optimizer,
                                        spillway_statistics* statistics);

// From the next step on. The kind of optimizer stays, and it may not need more state planes than
// there are.
spillway_status spillway_set_group(spillway_optimizer* optimizer, uint32_t group,
                                   const spillway_group* hyper);
// The tensor's values have moved (same type, same count).
spillway_status spillway_rebind(spillway_optimizer* optimizer, uint32_t tensor, void* data);

// A step, plain: spillway_give_gradient() for every tensor that has one, spillway_begin_step(),
// then spillway_wait(), or spillway_wait_for() tensor by tensor while the update still runs.
// Streamed: spillway_begin_streamed_step() first; every tensor is updated soon after its gradient
// was given; spillway_end_gradients(), then wait. Both give the same bits. A tensor without a
// gradient is left alone. Gradients are read and weights written until the wait for them has
// returned; the caller leaves both alone till then.

// Once a step and tensor; any thread, any order. Row-major, without gaps; `elements` must be the
// parameter's. NULL only without elements.
spillway_status spillway_give_gradient(spillway_optimizer* optimizer, uint32_t tensor,
                                       const void* data, uint64_t elements,
                                       spillway_gradient_type type);
// Forgets the gradients given since the last step.
spillway_status spillway_discard_gradients(spillway_optimizer* optimizer);
// Returns once norm and finiteness are known (if the rule asks), with the update under way.
// `report` may be NULL.
spillway_status spillway_begin_step(spillway_optimizer* optimizer, const spillway_step_rule* rule,
                                    spillway_step_report* report);
// Neither norm nor finiteness can be asked for: gradients are not known yet.
spillway_status spillway_begin_streamed_step(spillway_optimizer* optimizer, double gradient_scale);
spillway_status spillway_end_gradients(spillway_optimizer* optimizer);
// Until the weights of `tensor` are those after the step begun last.
spillway_status spillway_wait_for(spillway_optimizer* optimizer, uint32_t tensor);
// Until update and commit are over.
spillway_status spillway_wait(spillway_optimizer* optimizer);
// The same for at most `milliseconds` (longer than a day counts as a day); *finished is a flag.
spillway_status spillway_wait_limited(spillway_optimizer* optimizer, uint64_t milliseconds,
                                      int32_t* finished);

// Starts a commit to `out` of everything as it is after the step begun last: weights, state,
// counters, the caller's own count, and at most 65,536 bytes of the caller's own (copied). Durable
// once spillway_wait() returned.
spillway_status spillway_begin_commit(spillway_optimizer* optimizer, uint64_t iteration,
                                      const void* client_state, uint64_t client_state_bytes);
// Before the first step: loads the newest commit, weights into the parameters' memory. *found is a
// flag; 0: `out` held no commit when the optimizer was made (or there is no `out`), nothing has
// changed and *iteration is left alone. Until a commit that is there was recovered, steps are
// refused.
spillway_status spillway_recover(spillway_optimizer* optimizer, int32_t* found,
                                 uint64_t* iteration);
// The caller's own bytes in the commit that was recovered; valid as long as the optimizer.
spillway_status spillway_recovered_client_state(const spillway_optimizer* optimizer,
                                                const void** client_state,
                                                uint64_t* client_state_bytes);

// A tensor's own number of updates. Setting it is for loading a foreign checkpoint.
spillway_status spillway_steps(const spillway_optimizer* optimizer, uint32_t tensor,
                               uint64_t* steps);
spillway_status spillway_set_steps(spillway_optimizer* optimizer, uint32_t tensor, uint64_t steps);

// `elements` elements of a tensor from number `first` on; they wait for the update. State by plane,
// as cpu_optim/elementwise.h lists them; masters are the fp32 weights; a residue is what a bf16
// weight lacks to its master. Lossy state is decoded, and encoded to nearest; int8 is written in
// whole blocks of 256 elements, but for the tensor's end.
spillway_status spillway_read_state(spillway_optimizer* optimizer, uint32_t tensor, uint64_t plane,
                                    uint64_t first, float* values, uint64_t elements);
spillway_status spillway_write_state(spillway_optimizer* optimizer, uint32_t tensor, uint64_t plane,
                                     uint64_t first, const float* values, uint64_t elements);
spillway_status spillway_read_masters(spillway_optimizer* optimizer, uint32_t tensor,
                                      uint64_t first, float* values, uint64_t elements);
// The running average of a tensor's masters (options.average). SPILLWAY_WRONG_ORDER if none is
// kept, or, to read it, the tensor was not updated often enough yet for it to have taken up any;
// writing it is for loading a checkpoint, with spillway_set_steps(). Both added to version 1.
spillway_status spillway_read_average(spillway_optimizer* optimizer, uint32_t tensor,
                                      uint64_t first, float* values, uint64_t elements);
spillway_status spillway_write_average(spillway_optimizer* optimizer, uint32_t tensor,
                                       uint64_t first, const float* values, uint64_t elements);
// Adafactor's numbers of a tensor, from number `first` on: of its last two dimensions one for each
// row, of all such matrices, then one for each column; of a tensor of one dimension or none one for
// each element. `count`: how many there are; 0 with another optimizer. Reading and writing them is
// SPILLWAY_WRONG_ORDER with another optimizer. All added to version 1.
spillway_status spillway_factors(const spillway_optimizer* optimizer, uint32_t tensor,
                                 uint64_t* count);
spillway_status spillway_read_factors(spillway_optimizer* optimizer, uint32_t tensor,
                                      uint64_t first, float* values, uint64_t count);
spillway_status spillway_write_factors(spillway_optimizer* optimizer, uint32_t tensor,
                                       uint64_t first, const float* values, uint64_t count);
spillway_status spillway_read_residue(spillway_optimizer* optimizer, uint32_t tensor,
                                      uint64_t first, int16_t* values, uint64_t elements);
spillway_status spillway_write_residue(spillway_optimizer* optimizer, uint32_t tensor,
                                       uint64_t first, const int16_t* values, uint64_t elements);
// The plane where it lies, if all of it is in host memory and fp32, else NULL and 0. Valid as long
// as the optimizer; written by updates.
spillway_status spillway_state_view(spillway_optimizer* optimizer, uint32_t tensor, uint64_t plane,
                                    float** values, uint64_t* elements);
// The caller has changed the values of a bf16 tensor: they are its masters now. An fp32 tensor
// needs nothing.
spillway_status spillway_reset_residue(spillway_optimizer* optimizer, uint32_t tensor);

// All masters by name into a safetensors file; it is absent, old or whole at any moment, and
// durable on return. Takes 1 MiB of memory. SPILLWAY_EXPORT_BF16 stores the bf16 halves of the
// masters.
spillway_status spillway_export_masters(spillway_optimizer* optimizer, const char* path,
                                        spillway_export_type type);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
