# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Updates that run while torch does something else, and what keeps torch from seeing them half done."""
from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from spillway.torch.engine import Engine, Slot


@dataclasses.dataclass
class Given:
    """A gradient that the update reads, and what may not change meanwhile."""

    slot: Slot
    gradient: Tensor
    gradient_version: int

    @classmethod
    def now(cls, slot: Slot, gradient: Tensor) -> Given:
        return cls(slot, gradient, gradient._version)

    def gradient_changed(self) -> bool:
        return self.gradient._version != self.gradient_version

    def fault(self) -> str | None:
        """What was done to it behind the update's back, if anything."""
        if self.gradient_changed():
            return (f"the gradient of parameter {self.slot.name} was changed while its update was reading it; call "
                    "optimizer.wait() before changing gradients in place")
        if self.slot.parameter._version != self.slot.version or self.slot.parameter.data_ptr() != self.slot.pointer:
            return (f"parameter {self.slot.name} was changed while its update was writing it; call optimizer.wait() "
                    "before changing weights")
        return None


class Flight:
    """An update under way: weights are written and gradients read until wait() returns."""

    def __init__(self, engine: Engine, given: Iterable[Given]) -> None:
        self._engine = engine
        self._given = {one.slot.parameter: one for one in given}

    def holds(self, parameter: Tensor) -> bool:
        return parameter in self._given

    def wait_for(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            one = self._given.get(parameter)
            if one is not None:
                self._engine.native.wait_for(one.slot.number)
                del self._given[parameter]
                _raise_if(one.fault())

    def wait(self) -> None:
        self._engine.native.wait()
        faults = [fault for one in self._given.values() if (fault := one.fault())]
        self._given.clear()
        _raise_if(faults[0] if faults else None)


def _raise_if(fault: str | None) -> None:
    if fault is not None:
        raise RuntimeError(fault)


class ForwardGuard:
    """Makes every module wait for its own weights before it runs.

    A module waits for the parameters it owns, and if it owns any, for those below it too (MultiheadAttention reads
    its projection's weight without calling the projection). A forward pass without gradients waits for everything,
    as does a module's state_dict(). Parameters that get a gradient though no module that guards them ran are found
    in the first backward pass and from then on waited for in step() itself; one that first shows up later, when it
    may have been read half written, is an error.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._covered: set[Tensor] = set()  # guarded since the last step
        self.unguarded: set[Tensor] = set()
        self._saves_guarded: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        handle = nn.modules.module.register_module_forward_pre_hook(_Hook(self, "before_forward"))
        weakref.finalize(self, handle.remove)

    def step_begun(self) -> None:
        self._covered.clear()

    def all_waited(self, parameters: Iterable[Tensor]) -> None:
        """What was waited for in another way is safe to read until the next step."""
        self._covered.update(parameters)

    def before_forward(self, module: nn.Module, _: Any) -> None:
        optimizer = self._optimizer()
        if optimizer is None:
            return
        own = [p for p in module._parameters.values() if p is not None and optimizer._watches(p)]
        if not own:
            return
        below = [p for p in module.parameters() if optimizer._watches(p)]
        self._guard_saving(module)
        self._covered.update(below)
        if torch.is_grad_enabled():
            optimizer._wait_for(below)
        else:
            optimizer.wait()

    def _guard_saving(self, module: nn.Module) -> None:
        if module not in self._saves_guarded:
            module.register_state_dict_pre_hook(_Hook(self, "before_saving"))
            self._saves_guarded.add(module)

    def before_saving(self, *_: Any) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            optimizer.wait()

    def gradient_ready(self, parameter: Tensor, in_flight: bool) -> None:
        """Raises RuntimeError for a parameter that may have been read half written."""
        if parameter in self._covered or parameter in self.unguarded:
            return
        if in_flight:
            raise RuntimeError(f"a parameter of shape {tuple(parameter.shape)} was used by no module that owns it "
                               "while its update was under way, so it may have been read half written; with "
                               'overlap="forward" call optimizer.wait() before using weights outside of their modules')
        self.unguarded.add(parameter)


class _Hook:
    """Calls a method of an object as long as that lives. Copies of it (with a copied model) do nothing."""

    def __init__(self, target: Any = None, method: str = "") -> None:
        self._target = (lambda: None) if target is None else weakref.ref(target)
        self._method = method

    @torch._disable_dynamo
    def __call__(self, *arguments: Any) -> None:
        target = self._target()
        if target is not None:
            getattr(target, self._method)(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, ()


def watch_gradient(optimizer: Any, parameter: Tensor) -> Any:
    """Calls optimizer._gradient_ready(parameter) whenever its gradient has been accumulated; returns the handle."""
    return parameter.register_post_accumulate_grad_hook(_Hook(optimizer, "_gradient_ready"))


class Stream:
    """A step whose gradients are given as backward completes them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._given: dict[Tensor, Given] = {}
        self.accepting = True
        self.fault: str | None = None  # why the step cannot be completed
        engine.native.begin_streamed_step(1.0)

    def give(self, slot: Slot, gradient: Tensor, run: Tensor, layouts: list[tuple[str, ...]]) -> None:
        """Raises RuntimeError if this tensor's gradient was given before."""
        if slot.parameter in self._given:
            self.fault = (f"the gradient of parameter {slot.name} was added to after it had been used; only the last "
                          "backward pass before step() may run inside last_micro_batch(), and each parameter's "
                          "gradient may be completed once in it. The weights are those of no whole step: go back "
                          "to a checkpoint")
            raise RuntimeError(self.fault)
        # Before the update starts: whatever autograd still holds of these values is stale from here on.
        self._engine.mark_updated([slot], layouts)
        self._given[slot.parameter] = Given.now(slot, gradient)
        self._engine.native.give_gradient(slot.number, run)

    def slot(self, parameter: Tensor) -> Slot | None:
        """None: the parameter is in no group any more."""
        return self._engine.slots.get(parameter)

    def missing(self) -> list[Slot]:
        return [slot for slot in self._engine.slots.values() if slot.parameter not in self._given]

    def close(self) -> None:
        """Ends the step and waits for it. Raises RuntimeError if a gradient is not the one that was used."""
        self.accepting = False
        self._engine.native.end_gradients()
        self._engine.native.wait()
        _raise_if(self.fault)
        for one in self._given.values():
            current = one.slot.parameter.grad
            if current is not None and (current is not one.gradient or one.gradient_changed()):
                raise RuntimeError(f"the gradient of parameter {one.slot.name} was changed after its update had used "
                                   'it; overlap="backward" cannot be combined with clipping, unscaling or other '
                                   "changes of gradients between backward and step()")
