# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""One native TensorOptimizer and which torch tensor is which of its tensors."""
from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from spillway import _core
from spillway.torch import tensors
from spillway.torch.families import MU_PRODUCT, Family, Hyper
from spillway.torch.options import OffloadOptions

PIECE_ELEMENTS = 1 << 20  # of state that is read or written at a time: 4 MiB
RESIDUE = "residue"
AVERAGED = "averaged"  # how many updates of its own a parameter has had, with an average
AVERAGE = "average"
_PLACEHOLDER = "nothing"  # of a native object whose tensors have no elements: it needs one

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child: the native object's threads and files are the parent's, so it must never be destroyed here,
    not even when the interpreter ends."""
    for engine in _engines:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine._native))


os.register_at_fork(after_in_child=_leave_to_the_parent)


@dataclasses.dataclass
class Slot:
    """A parameter's place in the native object, and what was true of its values when that last used them."""

    parameter: Tensor
    number: int
    group: int
    name: str
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    pointer: int
    version: int | None  # of the values that the residue belongs to; None: of whatever they are at the next step
    stale: set[int] = dataclasses.field(default_factory=set)  # planes to be cleared before anyone looks at them
    started: bool = False  # has state of its own: was updated or loaded
    has_residue: bool = False  # may differ from zero
    was_given_average: bool = False  # since it was made or cleared

    def was_moved(self) -> bool:
        p = self.parameter
        return p.data_ptr() != self.pointer or p.dtype != self.dtype or p.stride() != self.stride

    def was_edited(self) -> bool:
        """Whether the user has changed the values since the last update."""
        return self.version not in (None, self.parameter._version) or self.was_moved()


@dataclasses.dataclass(frozen=True)
class Member:
    """A parameter to be taken in."""

    parameter: Tensor
    group: int
    name: str


class Engine:
    """The native optimizer over a fixed set of parameters and a fixed layout of state planes per group.

    Not thread-safe, but give() may be called from any thread. Use in a forked child raises RuntimeError.
    """

    def __init__(self, family: Family, members: list[Member], hypers: list[Hyper], layouts: list[tuple[str, ...]],
                 options: OffloadOptions, start: float = 0.0) -> None:
        tensors.refuse_shared_memory([(member.name, member.parameter) for member in members])
        self.family = family
        self.layouts = layouts
        self._average_interval = options.average_interval
        self._start = start  # what a plane holds before its tensor's first update
        self.slots = {member.parameter: self._slot(number, member) for number, member in enumerate(members)}
        self._cleared: dict[int, Slot] = {}  # by number: those that may have stale planes
        self._without_average: dict[int, Slot] = {}  # by number: were given a count for which they have no average
        self._hypers = [family.with_planes(hyper, names) for hyper, names in zip(hypers, layouts, strict=True)]
        self._pid = os.getpid()
        arranged = Tensor.detach if family.factored else tensors.in_memory_order
        listed = [(slot.name, arranged(slot.parameter), slot.group) for slot in self.slots.values()]
        if not any(member.parameter.numel() for member in members):
            listed.append((_PLACEHOLDER, torch.zeros(1, dtype=torch.float32, device="cpu"), 0))
        self._native = _core.TensorOptimizer(
            listed, family.native_name, self._hypers, host_bytes=options.host_bytes, nvme=options.nvme,
            more_nvme=options.more_nvme, chunk_bytes=options.chunk_bytes, threads=options.threads, isa=options.isa,
            io_backend=options.io_backend, state=options.state, average=options.average)
        _engines.add(self)

    @staticmethod
    def check_room(family: Family, members: list[Member], hypers: list[Hyper], layouts: list[tuple[str, ...]],
                   options: OffloadOptions) -> None:
        """Raises Refused if these would not fit, ValueError if some share memory."""
        tensors.refuse_shared_memory([(member.name, member.parameter) for member in members])
        planned = [(m.name, tuple(m.parameter.shape) if family.factored else m.parameter.numel(),
                    _native_type(m.parameter), m.group) for m in members]
        if any(m.parameter.numel() for m in members):
            _core.TensorOptimizer.check_room(
                planned, family.native_name,
                [family.with_planes(hyper, names) for hyper, names in zip(hypers, layouts, strict=True)],
                host_bytes=options.host_bytes, nvme=options.nvme, more_nvme=options.more_nvme,
                chunk_bytes=options.chunk_bytes, state=options.state, average=options.average)

    @staticmethod
    def _slot(number: int, member: Member) -> Slot:
        p = member.parameter
        return Slot(p, number, member.group, member.name, p.shape, p.stride(), p.dtype, p.data_ptr(), p._version)

    @property
    def native(self) -> Any:
        """The native object; raises RuntimeError in a forked child."""
        if os.getpid() != self._pid:
            raise RuntimeError("this optimizer belongs to the process that made it; a forked child cannot use it "
                               "(start workers with the spawn method, or make an optimizer in each process)")
        return self._native

    def accepts(self, layouts: list[tuple[str, ...]]) -> bool:
        """Whether groups that need these planes can go on here."""
        return len(layouts) == len(self.layouts) and all(
            held[: len(needed)] == needed for needed, held in zip(layouts, self.layouts, strict=True))

    def set_hypers(self, hypers: list[Hyper]) -> None:
        for group, hyper in enumerate(hypers):
            if hyper != self._hypers[group]:
                self.native.set_group(group, hyper)
                self._hypers[group] = hyper

    def follow_values(self) -> bool:
        """Looks where every parameter's values are now and whether the user changed them. False: some have another
        memory order, so that the state has to be arranged anew. Raises ValueError or TypeError for what cannot be
        followed."""
        moved = [slot for slot in self.slots.values() if slot.was_moved()]
        for slot in moved:
            self._check_moved(slot)
        if moved:
            tensors.refuse_shared_memory([(slot.name, slot.parameter) for slot in self.slots.values()])
        for slot in self.slots.values():
            if slot.has_residue and slot.was_edited():
                self._forget_residue(slot)
        if any(slot.parameter.stride() != slot.stride for slot in moved):
            return False
        for slot in moved:
            self.native.rebind(slot.number, tensors.in_memory_order(slot.parameter))
            slot.pointer = slot.parameter.data_ptr()
        return True

    @staticmethod
    def _check_moved(slot: Slot) -> None:
        tensors.check_parameter(slot.name, slot.parameter)
        if slot.parameter.dtype != slot.dtype:
            raise TypeError(f"parameter {slot.name} was {slot.dtype} and is {slot.parameter.dtype} now; make a new "
                            "optimizer after changing the dtype of a model")
        if slot.parameter.shape != slot.shape:
            raise ValueError(f"parameter {slot.name} had shape {tuple(slot.shape)} and has "
                             f"{tuple(slot.parameter.shape)} now; make a new optimizer after resizing a model")

    def _forget_residue(self, slot: Slot) -> None:
        if slot.dtype is torch.bfloat16:
            self.native.reset_residue(slot.number)
            slot.has_residue = False

    def begin_first_buffers(self, with_momentum: list[bool]) -> None:
        """SGD's first update of a buffer is the gradient itself, also when momentum came later than the tensor. Raises
        ValueError where that would take a tensor's average from it."""
        for slot in self.slots.values():
            updates = self.native.steps(slot.number)
            if not with_momentum[slot.group] or slot.started or updates == 0:
                continue
            if self._average_interval == 0:
                self.native.set_steps(slot.number, 0)
            elif (dampening := self._hypers[slot.group]["dampening"]) != 0:
                # Without it a buffer of zeros becomes the gradient whatever the count is, which is the average's, too.
                raise ValueError(f"parameter {slot.name} was updated {updates} times without momentum, and its group "
                                 f"has momentum and dampening={dampening} now; an optimizer with average= can begin "
                                 "with momentum later only with dampening=0: set that, or make a new optimizer")

    def mark_updated(self, slots: list[Slot], layouts: list[tuple[str, ...]]) -> None:
        """With an update of these tensors: autograd learns that their values change. `layouts`: of the groups."""
        torch.autograd.graph.increment_version([slot.parameter for slot in slots])
        for slot in slots:
            slot.version = slot.parameter._version
            slot.started = slot.started or bool(layouts[slot.group])
            slot.has_residue = slot.dtype is torch.bfloat16

    # ---- state, by torch's names -----------------------------------------------------------------------------

    def keys(self, slot: Slot) -> tuple[str, ...]:
        """Names of the state that this parameter has."""
        planes = self._planes(slot) if slot.started or self.family.starts_with_state else ()
        scalars = self.family.scalars if planes else ()
        return (*scalars, *planes, *self._average_keys(slot), *((RESIDUE,) if slot.has_residue and not slot.was_edited() else ()))

    def _planes(self, slot: Slot) -> tuple[str, ...]:
        return self.family.names(self.layouts[slot.group], slot.shape)

    def shape_of(self, slot: Slot, key: str) -> tuple[int, ...]:
        """Of the state of that name, which is no scalar."""
        return self.family.shape_of(key, slot.shape)

    def like_state(self, slot: Slot, key: str, flat: Tensor) -> Tensor:
        """`flat`, as many elements as that state has in memory order, with its shape."""
        shape = self.shape_of(slot, key)
        return tensors.like_parameter(flat, slot.shape, slot.stride) if shape == slot.shape else flat.view(shape)

    def _average_keys(self, slot: Slot) -> tuple[str, ...]:
        if self._average_interval == 0 or self.native.steps(slot.number) == 0:
            return ()
        return (AVERAGED, AVERAGE) if self.has_average(slot) else (AVERAGED,)

    def has_average(self, slot: Slot) -> bool:
        """Whether the parameter's average has taken up any weights. One that was given its state without an average
        has its weights as such, as they are before its next update."""
        return 0 < self._average_interval <= self.native.steps(slot.number)

    def is_scalar(self, key: str) -> bool:
        """Whether the state of that name is one number of a tensor."""
        return key == AVERAGED or key in self.family.scalars

    def has_room(self, slot: Slot, key: str) -> bool:
        """Whether `key` is kept here for this parameter."""
        if key == RESIDUE:
            return slot.dtype is torch.bfloat16
        if key in (AVERAGED, AVERAGE):
            return self._average_interval != 0
        return key in self._planes(slot) or key in self.family.scalars

    def is_resident(self) -> bool:
        """Whether every plane of every parameter lies in host memory and can be looked at there; an average cannot.
        What is factored is small, and copied; residues beside it are not."""
        if self.family.factored:
            return self._average_interval == 0 and all(slot.dtype is torch.float32 for slot in self.slots.values())
        return self._average_interval == 0 and all(self.native.state_view(slot.number, plane) is not None for slot in self.slots.values()
                   for plane in range(len(self.layouts[slot.group])))

    def read(self, slot: Slot, key: str) -> Tensor:
        """One value of the state, shaped as torch has it: a live view where it lies in host memory, else a copy."""
        if key in ("step", AVERAGED):
            return _scalar(self.native.steps(slot.number))
        if key == MU_PRODUCT:
            hyper = self._hypers[slot.group]
            return _scalar(_core.nadam_momentum_product(hyper["beta1"], hyper["momentum_decay"],
                                                        self.native.steps(slot.number)))
        if key not in (RESIDUE, AVERAGE):
            self._clear_stale(slot, self._planes(slot).index(key))
            view = self._view(slot, self._planes(slot).index(key))
            if view is not None:
                return tensors.like_parameter(torch.from_numpy(view), slot.shape, slot.stride)
        flat = torch.empty(math.prod(self.shape_of(slot, key)), dtype=torch.int16 if key == RESIDUE else torch.float32,
                           device="cpu")
        for first, piece in pieces(flat):
            self.read_piece(slot, key, first, piece)
        return self.like_state(slot, key, flat)

    def _view(self, slot: Slot, plane: int) -> Any:
        """The plane where it lies, or None."""
        return None if self.family.factored else self.native.state_view(slot.number, plane)

    def read_piece(self, slot: Slot, key: str, first: int, out: Tensor) -> None:
        """Elements first .. first + out.numel() of a plane or of the residue, in memory order."""
        if key == RESIDUE:
            self.native.read_residue(slot.number, first, out)
        elif key == AVERAGE and slot.number in self._without_average:
            self._read_weights(slot, first, out)
        elif key == AVERAGE:
            self.native.read_average(slot.number, first, out)
        else:
            plane = self._planes(slot).index(key)
            self._clear_stale(slot, plane)
            if self.family.factored and not slot.parameter.numel():
                out.zero_()
            elif self.family.factored:
                self.native.read_factors(slot.number, self._first_factor(slot, plane) + first, out)
            else:
                self.native.read_state(slot.number, plane, first, out)

    def _plane_size(self, slot: Slot, plane: int) -> int:
        # Of a tensor without elements nothing is kept, whatever shape torch's state has.
        return math.prod(self.shape_of(slot, self._planes(slot)[plane])) if slot.parameter.numel() else 0

    def _first_factor(self, slot: Slot, plane: int) -> int:
        return sum(self._plane_size(slot, before) for before in range(plane))

    def _read_weights(self, slot: Slot, first: int, out: Tensor) -> None:
        """Of the masters as they are now, also where the user has changed or moved the values."""
        if slot.has_residue and not slot.was_edited():
            self.native.read_masters(slot.number, first, out)
        else:
            out.copy_(tensors.arranged(slot.parameter, slot.shape, slot.stride)[first : first + out.numel()])

    def read_master(self, slot: Slot) -> Tensor:
        """The exact fp32 values, a copy."""
        flat = torch.empty(slot.parameter.numel(), dtype=torch.float32, device="cpu")
        for first, piece in pieces(flat):
            self.native.read_masters(slot.number, first, piece)
        return tensors.like_parameter(flat, slot.shape, slot.stride)

    def write(self, slot: Slot, key: str, value: Any) -> None:
        """Sets one value of the state from anything torch's classes keep under that name. `mu_product` follows from
        the step: nothing is set."""
        if key == MU_PRODUCT:
            return
        if key == AVERAGED:
            self._set_steps(slot, int(float(value)))
            return
        if key == AVERAGE:
            self._write_average(slot, tensors.arranged(value, slot.shape, slot.stride))
            return
        if key == "step":
            self._set_steps(slot, int(float(value)))
        elif key == RESIDUE:
            flat = tensors.arranged(value, slot.shape, slot.stride)
            for first, piece in pieces(flat):
                self.native.write_residue(slot.number, first, piece)
            slot.has_residue = True
            slot.version = None
            return
        else:
            self._write_plane(slot, key, value)
        slot.started = True
        if not self.family.counts_steps and self.native.steps(slot.number) == 0:
            self._set_steps(slot, 1)

    def _set_steps(self, slot: Slot, steps: int) -> None:
        had_average = self.has_average(slot) and slot.number not in self._without_average
        self.native.set_steps(slot.number, steps)
        if not had_average and not slot.was_given_average and self.has_average(slot):
            self._without_average[slot.number] = slot
        elif not self.has_average(slot):
            self._without_average.pop(slot.number, None)

    def _write_average(self, slot: Slot, flat: Tensor) -> None:
        for first, piece in pieces(flat):
            self.native.write_average(slot.number, first, piece.to(torch.float32))
        slot.was_given_average = True
        self._without_average.pop(slot.number, None)

    def _write_plane(self, slot: Slot, key: str, value: Tensor) -> None:
        plane = self._planes(slot).index(key)
        slot.stale.discard(plane)
        if self.family.factored:
            flat = value.detach().reshape(-1)
        else:
            flat = tensors.arranged(value, slot.shape, slot.stride)
        for first, piece in pieces(flat[: self._plane_size(slot, plane)]):
            self._write_piece(slot, plane, first, piece.to(torch.float32))

    def _write_piece(self, slot: Slot, plane: int, first: int, values: Tensor) -> None:
        if self.family.factored:
            self.native.write_factors(slot.number, self._first_factor(slot, plane) + first, values)
        else:
            self.native.write_state(slot.number, plane, first, values)

    def begin(self, slot: Slot) -> None:
        """Sets planes to what they are before the first update. For a tensor of a new engine, which are 0."""
        if self._start != 0:
            for plane in range(len(self._planes(slot))):
                self._fill(slot, plane)

    def clear(self, slot: Slot) -> None:
        """As if the tensor had never been updated. What was handed out of its planes stays as it is until they are
        used again."""
        slot.stale = set(range(len(self._planes(slot))))
        self._cleared[slot.number] = slot
        self.native.set_steps(slot.number, 0)
        slot.started = slot.was_given_average = False
        self._without_average.pop(slot.number, None)
        self._forget_residue(slot)

    def settle(self) -> None:
        """Before an update: clears what is stale, and begins averages that were not given."""
        for slot in list(self._without_average.values()):
            self._write_average(slot, tensors.arranged(self.read(slot, AVERAGE), slot.shape, slot.stride))
        while self._cleared:
            _, slot = self._cleared.popitem()
            for plane in list(slot.stale):
                self._clear_stale(slot, plane)

    def _clear_stale(self, slot: Slot, plane: int) -> None:
        if plane in slot.stale:
            slot.stale.discard(plane)
            self._fill(slot, plane)

    def live_pointers(self, slots: Iterable[Slot] | None = None) -> set[int]:
        """Where the planes begin that lie in host memory."""
        views = (self._view(slot, plane) for slot in slots or self.slots.values()
                 for plane in range(len(self._planes(slot))))
        return {view.ctypes.data for view in views if view is not None and view.size}

    def _fill(self, slot: Slot, plane: int) -> None:
        count = self._plane_size(slot, plane)
        buffer = torch.full((min(count, PIECE_ELEMENTS),), self._start, dtype=torch.float32, device="cpu")
        for first in range(0, count, PIECE_ELEMENTS):
            self._write_piece(slot, plane, first, buffer[: count - first])


def _scalar(value: float) -> Tensor:
    """As torch keeps a step: in no type that would round it."""
    wide = torch.get_default_dtype() is torch.float64
    return torch.tensor(float(value), dtype=torch.float64 if wide else torch.float32, device="cpu")


def _native_type(parameter: Tensor) -> str:
    return str(parameter.dtype).removeprefix("torch.")


def pieces(flat: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(first element, view) of runs of at most PIECE_ELEMENTS."""
    for first in range(0, flat.numel(), PIECE_ELEMENTS):
        yield first, flat[first : first + PIECE_ELEMENTS]
