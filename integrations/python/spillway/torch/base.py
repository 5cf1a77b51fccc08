# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What the optimizers have in common: torch.optim.Optimizer over the native engine."""
from __future__ import annotations

import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import ParamsT

from spillway.torch import options, snapshot, tensors
from spillway.torch.checkpoint import CheckpointedOptimizer, no_view
from spillway.torch.engine import AVERAGE, Engine, Member, Slot
from spillway.torch.options import OffloadArguments
from spillway.torch.overlap import Flight, ForwardGuard, Given, Stream, watch_gradient

SKIPS_IN_A_ROW = 10


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What the last step() did. `norm`: of all gradients before clipping, if max_grad_norm or nonfinite needed it;
    `nonfinite`: elements that are infinite or NaN, if nonfinite needed them; `nonfinite_tensor`: the first."""

    applied: bool
    norm: float | None
    nonfinite: int
    nonfinite_tensor: str


class OffloadedOptimizer(CheckpointedOptimizer):
    """A torch.optim.Optimizer whose state may lie on a drive and whose arithmetic runs in native code.

    Everything of torch's interface works; this class adds wait(), last_micro_batch(), last_step, skipped_steps,
    master(), averages(), copy_averages() and statistics(). A parameter that is listed twice is updated once.
    """

    def __init__(self, params: ParamsT, defaults: dict[str, Any], offload: OffloadArguments) -> None:
        for flag in ("capturable", "differentiable"):
            if defaults.get(flag):
                raise ValueError(f"{flag}=True: {type(self).__name__} here runs outside of CUDA graphs and autograd; "
                                 f"leave {flag} out")
        self._options = options.of(type(self).__name__, offload)
        self._engine, self._stream = None, None
        self._stash, self._extras = {}, {}
        self._handed_out, self._state_view = weakref.WeakValueDictionary(), no_view
        self._flight: Flight | None = None
        self._guard: ForwardGuard | None = None
        self._watched: dict[Tensor, Any] = {}
        self._skips_in_a_row = 0
        self.skipped_steps = 0
        self.last_step: StepResult | None = None
        self._is_complete = False
        weakref.finalize(self, _remove_all, self._watched)
        super().__init__(params, defaults)
        self._check_room()
        self._is_complete = True
        if self._options.overlap == "forward":
            self._guard = ForwardGuard(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; refuses at once what cannot be offloaded, or does not fit memory and drive (Refused)."""
        super().add_param_group(param_group)
        try:
            self._check_group(len(self.param_groups) - 1)
            if self._is_complete:
                self._check_room()
        except Exception:
            del self.param_groups[-1]
            raise

    def _check_group(self, index: int) -> None:
        group = self.param_groups[index]
        for flag in ("capturable", "differentiable"):
            if group.get(flag):
                raise ValueError(f"{flag}=True in parameter group {index}: leave it out")
        for position, parameter in enumerate(group["params"]):
            if not is_lazy(parameter):  # one of a lazy module is checked when it has its shape
                self._check_parameter(self._name(index, position), parameter)
        self._watch(group["params"])

    def _check_parameter(self, name: str, parameter: Tensor) -> None:
        tensors.check_parameter(name, parameter)
        if self._family.factored and not parameter.is_contiguous():
            raise ValueError(f"parameter {name} cannot be offloaded: {type(self).__name__} keeps numbers for rows and "
                             f"columns, and those of strides {parameter.stride()} do not lie in order; give a "
                             "contiguous tensor")

    def _check_room(self) -> None:
        """Raises Refused for state that does not fit, with the bytes needed and available; makes nothing."""
        hypers = [self._family.hyper(group) for group in self.param_groups]
        Engine.check_room(self._family, self._members(), hypers, self._with_lasting(self._layouts()), self._options)

    def _name(self, group: int, position: int) -> str:
        names = self.param_groups[group].get("param_names")
        return names[position] if names else f"{position} of group {group}"

    # ---- the step --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update from the gradients that there are, as torch's step(). Returns the closure's loss.

        Raises spillway.NonfiniteGradient with nonfinite="stop" (nothing has changed), and the engine's own errors:
        Refused if the state does not fit any more (unfrozen parameters, a drive that has filled up), OSError,
        IntegrityError.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._stream is not None:
            self._finish_stream()
            return loss
        self.wait()
        if any(p.grad is not None for group in self.param_groups for p in group["params"]):
            self._update(self._prepare())
        return loss

    def _update(self, engine: Engine) -> None:
        given = [(slot, gradient, self._run(slot, gradient)) for slot in engine.slots.values()
                 if (gradient := slot.parameter.grad) is not None]
        native = engine.native
        try:
            native.give_gradients([slot.number for slot, _, _ in given], [run for _, _, run in given])
            report = native.begin_step(1.0, self._options.max_grad_norm, self._options.nonfinite)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                native.discard_gradients()
            raise
        self.last_step = StepResult(report.applied, report.norm, report.nonfinite, report.nonfinite_tensor)
        if not report.applied:
            self._flight = Flight(engine, ())
            self.wait()
            self._count_skip(report)
            return
        self._skips_in_a_row = 0
        engine.mark_updated([slot for slot, _, _ in given], self._layouts())
        overlapped = self._guard is not None
        self._flight = Flight(engine, [Given.now(slot, gradient) for slot, gradient, _ in given] if overlapped else ())
        if self._guard is None:
            self.wait()
        else:
            self._guard.step_begun()
            self._wait_for(self._guard.unguarded)

    def _run(self, slot: Slot, gradient: Tensor) -> Tensor:
        return tensors.gradient_run(slot.name, type(self).__name__, gradient, slot.shape, slot.stride)

    def _layouts(self) -> list[tuple[str, ...]]:
        """Names of the planes that each group's updates use, as the groups are now."""
        return [self._family.planes(group) for group in self.param_groups]

    def _count_skip(self, report: Any) -> None:
        self.skipped_steps += 1
        self._skips_in_a_row += 1
        if self.skipped_steps & (self.skipped_steps - 1) == 0:  # at 1, 2, 4, ...: a run may have very many
            warnings.warn(f"step skipped: {report.nonfinite} elements of the gradients are not finite, the first in "
                          f"parameter {report.nonfinite_tensor} ({self.skipped_steps} steps skipped so far)",
                          RuntimeWarning, stacklevel=4)
        if self._skips_in_a_row >= SKIPS_IN_A_ROW:
            raise RuntimeError(f"{self._skips_in_a_row} steps in a row were skipped since gradients are not finite "
                               f"(parameter {report.nonfinite_tensor}); lower the learning rate or look at the data")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's."""
        if not set_to_none:
            self.wait()
        super().zero_grad(set_to_none)

    # ---- the engine ------------------------------------------------------------------------------------------

    def _prepare(self) -> Engine:
        """The engine, fit for the groups as they are now; built or rebuilt if need be."""
        hypers = [self._family.hyper(group) for group in self.param_groups]
        layouts = self._layouts()
        if self._engine is not None:
            if self._engine.follow_values() and self._engine.accepts(layouts) and self._covers_groups(self._engine):
                self._engine.set_hypers(hypers)
                return self._ready(self._engine, layouts)
            self._stash = snapshot.take(self._engine, self._options.nvme)
            self._engine = None  # freed before the next one is made, unless the stash still looks into it
        start = float(self.defaults[self._family.start_field]) if self._family.start_field else 0.0
        engine = Engine(self._family, self._members(), hypers, self._with_lasting(layouts), self._options, start)
        snapshot.load(engine, self._stash)
        engine.set_hypers(hypers)
        self._engine, self._stash = engine, {}
        return self._ready(engine, layouts)

    def _ready(self, engine: Engine, layouts: list[tuple[str, ...]]) -> Engine:
        if "momentum_buffer" in self._family.lasting:
            engine.begin_first_buffers([bool(names) for names in layouts])
        engine.settle()
        self._watch(engine.slots)
        return engine

    def _covers_groups(self, engine: Engine) -> bool:
        """Whether the engine has exactly the parameters it should have, each in its group."""
        found = set()
        for index, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                slot = engine.slots.get(parameter)
                if slot is None:
                    if _takes_part(parameter):
                        return False
                elif slot.group != index:
                    return False
                else:
                    found.add(slot.number)
        return len(found) == len(engine.slots)

    def _members(self) -> list[Member]:
        """Parameters that take part: they can get a gradient, have one or have state. Frozen ones cost nothing."""
        members: dict[Tensor, Member] = {}
        names: dict[str, int] = {}
        for index, group in enumerate(self.param_groups):
            for position, parameter in enumerate(group["params"]):
                if parameter in members or not (_takes_part(parameter) or parameter in self._stash):
                    continue
                name = self._name(index, position)
                names[name] = names.get(name, 0) + 1
                unique = name if names[name] == 1 else f"{name} #{names[name]}"
                self._check_parameter(name, parameter)
                members[parameter] = Member(parameter, index, unique)
        return list(members.values())

    def _with_lasting(self, layouts: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The planes of each group, with those that it no longer uses but has."""
        result = []
        for names, group in zip(layouts, self.param_groups, strict=True):
            kept = (key for key in self._family.lasting if key not in names
                    and any(key in self._stash.get(p, ()) for p in group["params"]))
            result.append((*names, *kept))
        return result

    # ---- overlap ---------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until the last step's update is over. Needed before weights are read or gradients changed by other means
        than modules, state_dict() and this optimizer when overlap="forward"; always allowed."""
        flight = self._flight
        if flight is not None:
            flight.wait()
            self._flight = None
            if self._guard is not None and self._engine is not None:
                self._guard.all_waited(self._engine.slots)

    def _wait_for(self, parameters: Iterable[Tensor]) -> None:
        if self._flight is not None:
            self._flight.wait_for(parameters)

    def _watch(self, parameters: Iterable[Tensor]) -> None:
        """From now on _gradient_ready() is called for these, if an overlap mode needs it."""
        for parameter in parameters if self._options.overlap is not None else ():
            if parameter.requires_grad and parameter not in self._watched and not is_lazy(parameter):
                self._watched[parameter] = watch_gradient(self, parameter)

    def _watches(self, parameter: Tensor) -> bool:
        return parameter in self._watched

    def _gradient_ready(self, parameter: Tensor) -> None:
        """After autograd has accumulated a gradient."""
        if self._stream is not None and self._stream.accepting and parameter.grad is not None:
            slot = self._stream.slot(parameter)
            if slot is not None:
                self._stream.give(slot, parameter.grad, self._run(slot, parameter.grad), self._layouts())
        elif self._guard is not None:
            in_flight = self._flight is not None and self._flight.holds(parameter)
            self._guard.gradient_ready(parameter, in_flight)

    @contextlib.contextmanager
    def last_micro_batch(self) -> Iterator[None]:
        """Marks the last backward pass before step(): with overlap="backward", parameters are updated inside it, as
        their gradients become complete; without, it does nothing, so that a loop can have it always.

            with opt.last_micro_batch():
                loss.backward()
            opt.step()
        """
        if self._options.overlap != "backward":
            yield
            return
        self._open_stream()
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self._close_stream()
            raise
        finally:
            if self._stream is not None:
                self._stream.accepting = False

    def _open_stream(self) -> None:
        if self._stream is not None:
            raise RuntimeError("last_micro_batch() was entered again before step()")
        if torch.distributed.is_available() and torch.distributed.is_initialized() \
                and torch.distributed.get_world_size() > 1:
            raise RuntimeError('overlap="backward" cannot be combined with several ranks: gradients would be used '
                               'before they are averaged; use overlap="forward"')
        self.wait()
        with torch.no_grad():
            self._stream = Stream(self._prepare())

    def _finish_stream(self) -> None:
        stream = self._stream
        assert stream is not None
        late = [self._name(index, position) for index, group in enumerate(self.param_groups)
                for position, parameter in enumerate(group["params"])
                if parameter.grad is not None and stream.slot(parameter) is None]
        for slot in stream.missing():
            gradient = slot.parameter.grad
            if gradient is not None:
                stream.give(slot, gradient, self._run(slot, gradient), self._layouts())
        self._close_stream()
        self.last_step = StepResult(True, None, 0, "")
        if late:
            raise RuntimeError(f"parameter {late[0]} has a gradient that was not used: it could not get one when "
                               "last_micro_batch() began (frozen, added since, or of a lazy module that had not run); "
                               "all others are updated. Change parameters before last_micro_batch()")

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    # ---- more than torch has ---------------------------------------------------------------------------------

    def master(self, parameter: Tensor) -> Tensor:
        """The exact fp32 value of a parameter, a copy: of a bf16 one, weight and residue joined."""
        engine = self._settled_engine()
        if engine is None or parameter not in engine.slots or parameter.dtype is torch.float32:
            return parameter.detach().to(torch.float32, copy=True)
        engine.follow_values()
        return engine.read_master(engine.slots[parameter])

    def averages(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, its running average: fp32, a copy), one after the other, of all whose average has taken up any
        weights. Raises RuntimeError without average=.

            for parameter, average in opt.averages():
                ...
        """
        if self._options.average_interval == 0:
            raise RuntimeError(f'{type(self).__name__} keeps no averages: make it with average="ema:0.999" or "swa:100"')
        engine = self._settled_engine()
        for slot in () if engine is None else list(engine.slots.values()):
            if engine.has_average(slot):
                yield slot.parameter, engine.read(slot, AVERAGE)

    @torch.no_grad()
    def copy_averages(self, source: torch.nn.Module, target: torch.nn.Module) -> None:
        """Makes `target`, a copy of the trained `source`, the averaged model: parameters that have an average get it,
        in their own dtype; others (frozen, never updated) and buffers what `source` has. One tensor at a time.

            averaged = copy.deepcopy(model)
            opt.copy_averages(model, averaged)

        Raises ValueError for a target of another structure, or one that shares parameters with `source`.
        """
        names = {parameter: name for name, parameter in source.named_parameters()}
        given = dict(target.named_parameters())
        if list(names.values()) != list(given):
            raise ValueError("target has other parameters than source: give a copy of it, such as copy.deepcopy(model)")
        for parameter, name in names.items():
            if given[name].shape != parameter.shape:
                raise ValueError(f"parameter {name} of target has shape {tuple(given[name].shape)}, that of source "
                                 f"{tuple(parameter.shape)}")
            if given[name] is parameter or (parameter.numel() and given[name].data_ptr() == parameter.data_ptr()):
                raise ValueError(f"parameter {name} of target is that of source, whose weights are being trained: give "
                                 "a copy of the model, such as copy.deepcopy(model)")
        left = dict(names)
        for parameter, average in self.averages():
            name = left.pop(parameter, None)
            if name is not None:
                given[name].copy_(average)
        for parameter, name in left.items():
            given[name].copy_(parameter)
        buffers = dict(target.named_buffers())
        for name, buffer in source.named_buffers():
            if name in buffers:
                buffers[name].copy_(buffer)

    def statistics(self) -> dict[str, Any]:
        """Bytes moved, host memory taken, seconds busy and stalled since the engine was built; {} before."""
        engine = self._settled_engine()
        return {} if engine is None else dict(engine.native.statistics())


def _takes_part(parameter: Tensor) -> bool:
    """Whether it can get a gradient or has one."""
    return (parameter.requires_grad or parameter.grad is not None) and not is_lazy(parameter)


def _remove_all(handles: Mapping[Any, Any]) -> None:
    for handle in handles.values():
        handle.remove()
