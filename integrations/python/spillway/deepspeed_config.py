# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""An optimizer from a DeepSpeed configuration.

What decides the numbers and where the state lives is taken over or refused by its key. What tunes DeepSpeed's own
buffers and buckets, or its training loop, has no meaning here and is left alone.
"""
from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillway.torch import OffloadedOptimizer

Section = Mapping[str, Any]

# Of the training loop, of logs, and of DeepSpeed's choice of kernels.
_TRAINER_KEYS = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "steps_per_print",
    "wall_clock_breakdown", "dump_state", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "activation_checkpointing", "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comms_logger",
}
# Of partitioning over ranks and of buckets: every rank here owns its copy.
_ZERO_KEYS = {
    "stage", "contiguous_gradients", "overlap_comm", "reduce_scatter", "reduce_bucket_size", "allgather_partitions",
    "allgather_bucket_size", "round_robin_gradients", "sub_group_size", "stage3_max_live_parameters",
    "stage3_max_reuse_distance", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold", "stage3_gather_16bit_weights_on_model_save", "ignore_unused_parameters",
    "load_from_fp32_weights", "elastic_checkpoint",
}
_OFFLOAD_KEYS = {"buffer_count", "pin_memory", "pipeline_read", "pipeline_write", "fast_init", "cpuadam_cores_perc"}
_AIO_KEYS = {"block_size", "queue_depth", "thread_count", "intra_op_parallelism", "single_submit", "overlap_events"}

# DeepSpeed's name -> ours, and which of its parameters are ours by the same name.
_OPTIMIZERS = {
    "adam": ("AdamW", {"lr", "betas", "eps", "weight_decay", "amsgrad"}),  # so unless adam_w_mode is false
    "adamw": ("AdamW", {"lr", "betas", "eps", "weight_decay", "amsgrad"}),
    "adagrad": ("Adagrad", {"lr", "eps", "weight_decay", "lr_decay", "initial_accumulator_value"}),
    "lion": ("Lion", {"lr", "betas", "weight_decay"}),
    "sgd": ("SGD", {"lr", "momentum", "dampening", "weight_decay", "nesterov"}),
    "rmsprop": ("RMSprop", {"lr", "alpha", "eps", "weight_decay", "momentum", "centered"}),
}


def from_deepspeed_config(config: Section | str | os.PathLike[str], parameters: Iterable[Any],
                          **replaced: Any) -> OffloadedOptimizer:
    """The optimizer that a ds_config.json (a path, or what json.load gives) describes, over `parameters`.

        opt = spillway.from_deepspeed_config("ds_config.json", model.parameters(), host_mem="8GiB")
        loss.backward(); opt.step(); opt.zero_grad()

    Taken over: `optimizer`, `gradient_clipping` (1.0 if it is not there, as in DeepSpeed 0.19; older ones did not
    clip), `zero_optimization.offload_optimizer` and, with bf16, its overflow check. `replaced`: arguments of the
    spillway.torch class that stand instead, such as host_mem, or lr where the file says "auto". Raises ValueError
    naming the key for what cannot be taken over.
    """
    import spillway.torch

    settings = config if isinstance(config, Mapping) else _read(config)
    readers: dict[str, Callable[[Any], dict[str, Any]]] = {
        "zero_optimization": _from_zero, "gradient_clipping": _from_clipping, "bf16": _from_bf16,
        "bfloat16": _from_bf16, "fp16": _from_fp16, "aio": _from_aio,
    }
    _refuse_unknown(settings, "", _TRAINER_KEYS | readers.keys() | {"optimizer"})
    name, arguments = _from_optimizer(_section(settings, "optimizer"))
    arguments.update(_from_clipping(1.0))
    for key, reader in readers.items():
        if key in settings:
            arguments.update(reader(settings[key]))
    arguments.update(replaced)
    for key, value in arguments.items():
        if value == "auto":
            raise ValueError(f'{key} is "auto" in the DeepSpeed configuration; give it: '
                             f"from_deepspeed_config(..., {key}=VALUE)")
    return getattr(spillway.torch, name)(parameters, **arguments)


def _read(path: Any) -> Section:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"the DeepSpeed configuration is {path!r}; needed is a path or a mapping")
    with open(path, encoding="utf-8") as file:
        try:
            settings = json.load(file)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} is no JSON: {error}") from error
    if not isinstance(settings, Mapping):
        raise ValueError(f"{os.fspath(path)} holds {type(settings).__name__}; needed is a JSON object")
    return settings


def _wrong(key: str, value: object, needed: str) -> ValueError:
    return ValueError(f"{key} is {value!r} in the DeepSpeed configuration; needed is {needed}")


def _as_section(value: Any, key: str) -> Section:
    if not isinstance(value, Mapping):
        raise _wrong(key, value, "a section")
    return value


def _section(parent: Section, key: str, path: str = "") -> Section:
    return _as_section(parent.get(key), path + key)


def _flag(section: Section, key: str, path: str, default: bool = False) -> bool:
    value = section.get(key, default)
    if not isinstance(value, bool):
        raise _wrong(path + key, value, "true or false")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _refuse_unknown(section: Section, path: str, known: Iterable[str]) -> None:
    known = set(known)
    for key in section:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            raise ValueError(f"{path}{key} in the DeepSpeed configuration cannot be taken over"
                             + (f"; did you mean {path}{near[0]}?" if near else "; leave it out"))


def _from_optimizer(section: Section) -> tuple[str, dict[str, Any]]:
    _refuse_unknown(section, "optimizer.", {"type", "params"})
    kind = str(section.get("type", "")).lower()
    if kind not in _OPTIMIZERS:
        raise ValueError(f"optimizer.type is {section.get('type')!r} in the DeepSpeed configuration; one of "
                         f"{', '.join(_OPTIMIZERS)}")
    name, own = _OPTIMIZERS[kind]
    params = dict(_as_section(section.get("params", {}), "optimizer.params"))
    if kind.startswith("adam"):
        name, params = _adam_mode(kind, name, params)
    _refuse_unknown(params, "optimizer.params.", own)
    _check_params(params)
    # DeepSpeed's own defaults where they are not torch's: Adam has a decay of 0 under either name.
    if name == "AdamW":
        params.setdefault("weight_decay", 0.0)
    if name == "Lion":
        params.setdefault("lr", 1e-3)
    return name, params


def _check_params(params: dict[str, Any]) -> None:
    """Numbers where numbers belong; "auto" is for the caller."""
    for key, value in params.items():
        if key == "betas" and value != "auto":
            if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(map(_is_number, value)):
                raise _wrong("optimizer.params.betas", value, "a list of two numbers")
            params[key] = tuple(value)
        elif key in ("lr", "eps", "weight_decay", "momentum") and value != "auto" and not _is_number(value):
            raise _wrong(f"optimizer.params.{key}", value, "a number")


def _adam_mode(kind: str, name: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """DeepSpeed's "Adam" is AdamW unless it is told otherwise."""
    params.pop("torch_adam", None)
    if not params.pop("bias_correction", True):
        raise ValueError("optimizer.params.bias_correction is false in the DeepSpeed configuration; Adam without it "
                         "cannot be taken over")
    decoupled = params.pop("adam_w_mode", True)
    return (name if decoupled or kind == "adamw" else "Adam"), params


def _from_zero(section: Section) -> dict[str, Any]:
    _as_section(section, "zero_optimization")
    _refuse_unknown(section, "zero_optimization.", _ZERO_KEYS | {"offload_optimizer", "offload_param"})
    if section.get("offload_param"):
        device = _section(section, "offload_param", "zero_optimization.").get("device", "none")
        if device not in (None, "none"):
            raise ValueError(f"zero_optimization.offload_param.device is {device!r} in the DeepSpeed configuration; "
                             "this version offloads optimizer state only")
    if not section.get("offload_optimizer"):
        return {}
    path = "zero_optimization.offload_optimizer."
    offload = _section(section, "offload_optimizer", "zero_optimization.")
    _refuse_unknown(offload, path, _OFFLOAD_KEYS | {"device", "nvme_path", "ratio", "super_offload"})
    if offload.get("ratio", 1.0) != 1.0:
        raise ValueError(f"{path}ratio is {offload['ratio']} in the DeepSpeed configuration; the whole update runs on "
                         "the CPU here: 1.0")
    if offload.get("super_offload"):
        raise ValueError(f"{path}super_offload cannot be taken over; leave it out")
    device = offload.get("device", "none")
    if device == "nvme":
        if not offload.get("nvme_path"):
            raise ValueError(f"{path}nvme_path is missing in the DeepSpeed configuration")
        return {"nvme": offload["nvme_path"]}
    if device not in ("cpu", "none", None):
        raise ValueError(f"{path}device is {device!r} in the DeepSpeed configuration; one of nvme, cpu, none")
    return {}


def _from_clipping(value: Any) -> dict[str, Any]:
    if value != "auto" and (not _is_number(value) or value < 0):
        raise _wrong("gradient_clipping", value, "a number, 0 for none")
    return {"max_grad_norm": value or None}


def _from_bf16(section: Section) -> dict[str, Any]:
    _as_section(section, "bf16")
    _refuse_unknown(section, "bf16.", {"enabled", "immediate_grad_update", "check_grad_overflow",
                                       "bf16_master_weights_and_grads", "bf16_optimizer_states"})
    for key in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
        if _flag(section, key, "bf16."):
            raise ValueError(f"bf16.{key} is still to come; state and masters are fp32 here")
    looks = _flag(section, "check_grad_overflow", "bf16.", default=True)
    return {"nonfinite": "skip"} if _flag(section, "enabled", "bf16.") and looks else {}


def _from_fp16(section: Section) -> dict[str, Any]:
    if _flag(_as_section(section, "fp16"), "enabled", "fp16."):
        raise ValueError("fp16.enabled in the DeepSpeed configuration cannot be taken over: parameters are fp32 or "
                         "bf16")
    return {}


def _from_aio(section: Section) -> dict[str, Any]:
    _as_section(section, "aio")
    _refuse_unknown(section, "aio.", _AIO_KEYS | {"use_gds"})
    if section.get("use_gds"):
        raise ValueError("aio.use_gds in the DeepSpeed configuration cannot be taken over: this version has no GPU")
    return {}
