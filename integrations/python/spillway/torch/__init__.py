# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""torch's optimizers with their state in a budget of host memory and on a drive.

    import spillway.torch as st
    opt = st.AdamW(model.parameters(), lr=1e-4, host_mem="4GiB", nvme="/mnt/nvme", max_grad_norm=1.0)

`AdamW`, `Adam`, `NAdam`, `SGD`, `Adagrad`, `RMSprop`, `Adafactor`, `Lion`, `LAMB` and `LARS` are torch.optim.Optimizer
classes with torch's signatures, defaults and errors; the keyword-only rest is explained at `spillway.torch.options.checked`. Parameters
stay where they are: fp32 (its own master) or bf16 (with a residue that makes it an exact fp32 master), dense, on the
CPU. Where the state lies changes no bit of the result.

- **Checkpoints**: `state_dict()` has torch's layout, loads into torch's classes and back. State on the drive is given
  as maps of a file without a name, so that saving needs no memory.
- **Skipped steps** (`nonfinite="skip"`): `opt.last_step.applied`, `opt.skipped_steps`. The norm before clipping:
  `opt.last_step.norm`.
- **Averages of the weights**, as torch.optim.swa_utils.AveragedModel but on the drive and inside the step:
  `average="ema:0.999"` or `"swa:100"`, with `opt.averages()` and `opt.copy_averages(model, copy)`.
- **Overlap**: `overlap="forward"` or `"backward"`, with `opt.wait()` and `opt.last_micro_batch()`.
- **Frameworks**: HF Trainer: `Trainer(..., optimizers=(opt, None))` or `optimizer_cls_and_kwargs=(st.AdamW, {...})`;
  Accelerate, Lightning, PEFT and DistributedDataParallel take it as any optimizer, each rank with its own state.

Not here: sparse or complex parameters, CUDA, `capturable`, `differentiable`; copying or pickling the optimizer
itself. Loss scales are torch's own (`torch.amp.GradScaler`).
"""
from spillway.torch.base import OffloadedOptimizer, StepResult
from spillway.torch.optimizers import LAMB, LARS, SGD, Adafactor, Adagrad, Adam, AdamW, Lion, NAdam, RMSprop

__all__ = ["Adafactor", "Adagrad", "Adam", "AdamW", "LAMB", "LARS", "Lion", "NAdam", "OffloadedOptimizer", "RMSprop", "SGD",
           "StepResult"]
