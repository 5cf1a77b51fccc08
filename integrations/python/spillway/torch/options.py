# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What every optimizer here takes beside torch's own arguments, checked once, at construction."""
from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import os
from collections.abc import Sequence
from typing import Any, TypedDict

from spillway import _core

ByteCount = int | str | None


Drives = str | os.PathLike | Sequence | None
"""A folder, or several on as many drives: a sequence, or their names with commas between."""


class OffloadArguments(TypedDict, total=False):
    """The keyword-only arguments of checked(), for type checkers and editors."""

    host_mem: ByteCount
    nvme: Drives
    state: str
    average: str | None
    max_grad_norm: float | None
    nonfinite: str
    overlap: str | None
    threads: int | None
    chunk_size: ByteCount
    isa: str
    io_backend: str


NONFINITE_RULES = ("propagate", "skip", "stop")
OVERLAPS = (None, "forward", "backward")
STATES = ("fp32", "bf16", "int8")


@dataclasses.dataclass(frozen=True)
class OffloadOptions:
    """Where the state lives and how it is updated. `checked()` makes one from what the user wrote."""

    host_bytes: int
    nvme: str
    state: str
    average: str  # "off", or as the native side takes it
    average_interval: int  # of updates after which the average takes up weights; 0: none is kept
    more_nvme: tuple[str, ...]
    max_grad_norm: float | None
    nonfinite: str
    overlap: str | None
    threads: int
    chunk_bytes: int
    isa: str
    io_backend: str


def _whole_number(value: Any) -> int:
    """0 for what is none. NumPy's integers are numbers, too; True is not."""
    try:
        return 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return 0


def _bytes(name: str, value: ByteCount) -> int:
    if isinstance(value, str):
        return _core.parse_bytes(value)
    count = _whole_number(value)
    if not 0 < count < 1 << 63:
        raise ValueError(f'{name}={value!r}: give a positive number of bytes or a size such as "4GiB"')
    return count


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> Any:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: one of {', '.join(map(repr, allowed))}")
    return value


def _folder(value: str | os.PathLike[str] | None) -> str:
    if value is None:
        return ""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(f"nvme={value!r} is no path: give a folder on the drive that may hold optimizer state, or None")
    if not os.fspath(value):
        raise ValueError("nvme='' names no folder: give one on the drive that may hold optimizer state, or None")
    path = os.path.abspath(os.fsdecode(value))
    if not os.path.isdir(path):
        what = "is not a folder" if os.path.exists(path) else "does not exist"
        raise ValueError(f"nvme={path!r} {what}: give a folder on the drive that may hold optimizer state")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"nvme={path!r} cannot be written to by this user")
    return path


def _folders(value: Drives) -> tuple[str, ...]:
    """One a drive; state is divided over them in proportion to their rates."""
    if isinstance(value, str) and "," in value and not os.path.isdir(value):
        value = value.split(",")
    if value is None or isinstance(value, (str, bytes, os.PathLike)):
        return (_folder(value),)
    folders = tuple(_folder(item) for item in value)
    for index, folder in enumerate(folders):
        if folder in folders[:index]:
            raise ValueError(f"nvme names {folder!r} twice: name each drive's folder once")
    return folders or ("",)


def _threads(value: int | None) -> int:
    """0 lets the native side use every allowed CPU; ranks that share a machine share its CPUs."""
    if value is None:
        local = os.environ.get("LOCAL_WORLD_SIZE") or "1"
        if not local.isdecimal():
            raise ValueError(f"the environment's LOCAL_WORLD_SIZE is {local!r} and must be a number: set it, or give "
                             "threads=")
        ranks = int(local)
        return 0 if ranks <= 1 else max(1, len(os.sched_getaffinity(0)) // ranks)
    count = _whole_number(value)
    if not 0 < count < 1 << 31:
        raise ValueError(f"threads={value!r}: a positive number, or None for every CPU this process may use")
    return count


def _max_grad_norm(value: float | None) -> float | None:
    if value is None:
        return None
    norm = float(value)
    if not (norm > 0 and math.isfinite(norm)):
        raise ValueError(f"max_grad_norm={value!r}: a positive, finite number, or None for no clipping")
    return norm


def _refuse_backward_with(max_grad_norm: float | None, nonfinite: str) -> None:
    """Streaming gradients are used before the last one is known, so nothing may depend on all of them."""
    if max_grad_norm is not None:
        raise ValueError('overlap="backward" cannot be combined with max_grad_norm: weights change before the norm '
                         'is known; use overlap="forward" or max_grad_norm=None')
    if nonfinite != "propagate":
        raise ValueError(f'overlap="backward" cannot be combined with nonfinite="{nonfinite}": weights change before '
                         'every gradient is known; use overlap="forward" or nonfinite="propagate"')


def _average(value: str | None) -> tuple[str, int]:
    """As text, and its interval."""
    if value is None:
        return "off", 0
    if not isinstance(value, str):
        raise TypeError(f'average={value!r}: "ema:DECAY", "swa:EVERY" or None')
    try:
        return value, _core.average_interval(value)
    except ValueError as error:
        raise ValueError(f"average={value!r}: {error}") from None


def checked(*, host_mem: ByteCount = None, nvme: Drives = None, state: str = "fp32", average: str | None = None,
            max_grad_norm: float | None = None, nonfinite: str = "propagate", overlap: str | None = None,
            threads: int | None = None, chunk_size: ByteCount = None, isa: str = "auto",
            io_backend: str = "auto") -> OffloadOptions:
    """The options as the engine takes them.

    host_mem: bytes ("4GiB", 2**32) of host memory for state and staging; None: what the machine has free.
    nvme: a folder on a drive for the state beyond that, or a list of folders, one a drive (then each holds a part in
    proportion to its rate). state: "fp32", which is exact; "bf16" or "int8" take a half or a quarter of the room and of
    the drive's time, and round (not with amsgrad or centered). average: "ema:DECAY" or "swa:EVERY" keep a running average
    of every parameter beside its state, 4 bytes an element, taken up after each or every EVERY-th of its own updates:
    see averages(). max_grad_norm: clip by the global norm of all groups.
    nonfinite: "propagate" as torch does, "skip" (such a step changes nothing), "stop" (raises).
    overlap: None: step() returns with the weights updated. "forward": it returns with the update under way; modules
    wait for their weights before they run, state_dict() of model and optimizer wait for all, and whoever reads
    weights in another way calls optimizer.wait() first. "backward": parameters are updated inside
    `with optimizer.last_micro_batch():` as their gradients become complete; gradients cannot be clipped then. All
    three give the same bits. threads: of the update. chunk_size: bytes of a plane in a transfer, a multiple of 64 KiB;
    None: the plan's. isa, io_backend: "auto" or a name. Raises ValueError naming the argument.
    """
    _one_of("nonfinite", nonfinite, NONFINITE_RULES)
    _one_of("overlap", overlap, OVERLAPS)
    norm = _max_grad_norm(max_grad_norm)
    if overlap == "backward":
        _refuse_backward_with(norm, nonfinite)
    folders = _folders(nvme)
    average_text, average_interval = _average(average)
    return OffloadOptions(
        host_bytes=_core.available_host_bytes() if host_mem is None else _bytes("host_mem", host_mem),
        nvme=folders[0], state=_one_of("state", state, STATES), average=average_text, average_interval=average_interval,
        more_nvme=folders[1:], max_grad_norm=norm, nonfinite=nonfinite, overlap=overlap,
        threads=_threads(threads), chunk_bytes=0 if chunk_size is None else _bytes("chunk_size", chunk_size),
        isa=_one_of("isa", isa, ("auto", *_core.isas())),
        io_backend=_one_of("io_backend", io_backend, tuple(_core.io_backends())))


def of(owner: str, arguments: OffloadArguments) -> OffloadOptions:
    """checked() for the constructor of `owner`. Raises TypeError for an argument that there is not."""
    known = list(inspect.signature(checked).parameters)
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}"
                            + (f"; did you mean {near[0]}?" if near else ""))
    return checked(**arguments)
