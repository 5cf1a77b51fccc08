# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The whole state as torch tensors, without needing host memory for it.

State that lies in host memory is given as it lies: torch tensors over the same memory, as torch's own classes give
their own tensors. If a part is on the drive, everything is copied into one file without a name beside it, and the
tensors are maps of that file, which goes when the last of them does.
"""
from __future__ import annotations

import math
import mmap
import os
import tempfile

import torch
from torch import Tensor

from spillway.torch.engine import PIECE_ELEMENTS, RESIDUE, Engine, Slot

Snapshot = dict[Tensor, dict[str, Tensor]]
_ALIGNMENT = 64  # of a plane in the file, so that every element type may start there


def take(engine: Engine, folder: str) -> Snapshot:
    """Everything that `engine` knows, by parameter and torch's names. Raises OSError if `folder` is full."""
    if not folder or engine.is_resident():
        return {slot.parameter: {key: engine.read(slot, key) for key in engine.keys(slot)}
                for slot in engine.slots.values() if engine.keys(slot)}
    return _StateFile(engine, folder).tensors()


class _StateFile:
    """All planes one after the other in an unnamed file."""

    def __init__(self, engine: Engine, folder: str) -> None:
        self._engine = engine
        self._places: list[tuple[Slot, str, int]] = []
        self._bytes = 0
        for slot in engine.slots.values():
            for key in engine.keys(slot):
                self._places.append((slot, key, self._bytes))
                if not engine.is_scalar(key):
                    width = 2 if key == RESIDUE else 4
                    self._bytes += -(-math.prod(engine.shape_of(slot, key)) * width // _ALIGNMENT) * _ALIGNMENT
        with tempfile.TemporaryFile(prefix="spillway-state-", dir=folder) as file:
            if self._bytes:
                os.posix_fallocate(file.fileno(), 0, self._bytes)
                self._write(file.fileno())
                self._map = mmap.mmap(file.fileno(), self._bytes)

    def _write(self, descriptor: int) -> None:
        # Written, not stored into the map: pages of a map would count as this process's memory.
        buffers = {width: torch.empty(PIECE_ELEMENTS, dtype=dtype, device="cpu")
                   for width, dtype in ((2, torch.int16), (4, torch.float32))}
        for slot, key, place in self._places:
            if self._engine.is_scalar(key):
                continue
            width = 2 if key == RESIDUE else 4
            count = math.prod(self._engine.shape_of(slot, key))
            for first in range(0, count, PIECE_ELEMENTS):
                piece = buffers[width][: min(PIECE_ELEMENTS, count - first)]
                self._engine.read_piece(slot, key, first, piece)
                _write_all(descriptor, piece.view(torch.uint8).numpy().data, place + first * width)

    def tensors(self) -> Snapshot:
        found: Snapshot = {}
        for slot, key, place in self._places:
            found.setdefault(slot.parameter, {})[key] = self._tensor(slot, key, place)
        return found

    def _tensor(self, slot: Slot, key: str, place: int) -> Tensor:
        if self._engine.is_scalar(key):
            return self._engine.read(slot, key)
        dtype = torch.int16 if key == RESIDUE else torch.float32
        count = math.prod(self._engine.shape_of(slot, key))
        flat = (torch.frombuffer(self._map, dtype=dtype, count=count, offset=place) if count
                else torch.empty(0, dtype=dtype, device="cpu"))
        return self._engine.like_state(slot, key, flat)


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def load(engine: Engine, snapshot: Snapshot) -> None:
    """Puts a snapshot's values into a new engine. Names that it has no plane for are left out."""
    for parameter, slot in engine.slots.items():
        values = snapshot.get(parameter)
        if values is None:
            engine.begin(slot)
            continue
        for key, value in values.items():
            if engine.has_room(slot, key):
                engine.write(slot, key, value)


def check_value(name: str, shape: tuple[int, ...], key: str, value: object) -> None:
    """Raises ValueError for state that has not the shape that it has here, before anything is loaded."""
    if not isinstance(value, Tensor):
        raise ValueError(f"state {key!r} of parameter {name} is {type(value).__name__}; needed is a tensor")
    if tuple(value.shape) != tuple(shape):
        raise ValueError(f"state {key!r} of parameter {name} has shape {tuple(value.shape)}; needed is {tuple(shape)}")
