# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""`state`, `state_dict()` and `load_state_dict()` in torch's layout, for the optimizers here."""
from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from spillway.torch import snapshot
from spillway.torch.engine import AVERAGE, AVERAGED, RESIDUE, Engine, Slot
from spillway.torch.families import Family
from spillway.torch.options import OffloadOptions
from spillway.torch.overlap import Stream
from spillway.torch.state import HandedOut, OptimizerState, let_go


def no_view() -> None:
    """Of an optimizer whose `state` nobody holds."""


class CheckpointedOptimizer(Optimizer):
    """The part of OffloadedOptimizer that has to do with reading and setting state."""

    _family: Family
    _options: OffloadOptions
    _engine: Engine | None
    _stream: Stream | None
    _stash: snapshot.Snapshot  # state without an engine: to be loaded into the next one
    _handed_out: HandedOut
    _state_view: Callable[[], OptimizerState | None]  # a weak reference to what `state` gave last
    _extras: dict[Any, dict[str, Any]]  # what users keep in state beside what the engine has
    _fixed_fields: dict[str, Any] = {}  # of parameter groups, whatever a checkpoint says

    def wait(self) -> None:
        raise NotImplementedError

    def _prepare(self) -> Engine:
        raise NotImplementedError

    # ---- optimizer.state -------------------------------------------------------------------------------------

    @property  # type: ignore[override]
    def state(self) -> OptimizerState:
        """Per parameter, by torch's names: see spillway.torch.state."""
        view = self._state_view()
        if view is None:
            view = OptimizerState(self, self._handed_out)
            self._state_view = weakref.ref(view)
        return view

    @state.setter
    def state(self, values: Mapping[Any, Mapping[str, Any]]) -> None:
        view = self._state_view()
        if values is view and view is not None:
            return
        engine = self._settled_engine() if self._engine is not None else None
        live = set() if engine is None else engine.live_pointers()
        given = {parameter: self._apart(parameter, own, live) for parameter, own in values.items()}
        if view is not None:
            view._detach()
            self._state_view = no_view
        let_go(self._handed_out, *self._handed_out)
        self._extras, self._stash = {}, {}
        if engine is not None:
            for slot in engine.slots.values():
                engine.clear(slot)
        for parameter, own in given.items():
            self.state[parameter] = own  # type: ignore[assignment]

    def _apart(self, parameter: Any, values: Mapping[str, Any], live: set[int]) -> dict[str, Any]:
        """The values, copied where they lie in the state of another parameter, which is going to be written."""
        place = self._place(parameter)
        own = set() if place is None else place[0].live_pointers([place[1]])
        return {key: value.clone() if isinstance(value, Tensor) and value.data_ptr() in live - own else value
                for key, value in values.items()}

    def _settled_engine(self) -> Engine | None:
        """The engine with no update under way. None: there is no state yet."""
        if self._stream is not None:
            raise RuntimeError("gradients were given in last_micro_batch(): call step() first")
        self.wait()
        if self._engine is None and (self._stash or self._family.starts_with_state):
            self._prepare()
        return self._engine

    def _place(self, parameter: Any) -> tuple[Engine, Slot] | None:
        engine = self._settled_engine()
        slot = engine.slots.get(parameter) if engine is not None and isinstance(parameter, Tensor) else None
        return None if engine is None or slot is None else (engine, slot)

    def _state_parameters(self) -> list[Any]:
        engine = self._settled_engine()
        own = {p: True for p, slot in engine.slots.items() if engine.keys(slot)} if engine is not None else {}
        return [*own, *(key for key in self._extras if key not in own)]

    def _state_has(self, parameter: Any) -> bool:
        return parameter in self._extras or bool(self._state_keys(parameter))

    def _state_keys(self, parameter: Any) -> list[str]:
        place = self._place(parameter)
        own = () if place is None else place[0].keys(place[1])
        return [*own, *self._extras.get(parameter, ())]

    def _state_get(self, parameter: Any, key: str) -> Any:
        place = self._place(parameter)
        if place is not None and key in place[0].keys(place[1]):
            return place[0].read(place[1], key)
        return self._extras.get(parameter, {})[key]

    def _state_set(self, parameter: Any, key: str, value: Any) -> None:
        place = self._place(parameter)
        if place is None and self._belongs_in_an_engine(parameter, key):
            self._prepare()
            place = self._place(parameter)
        if place is None or not place[0].has_room(place[1], key):
            self._extras.setdefault(parameter, {})[key] = value
            return
        if not place[0].is_scalar(key):
            snapshot.check_value(place[1].name, place[0].shape_of(place[1], key), key, value)
        place[0].write(place[1], key, value)

    def _belongs_in_an_engine(self, parameter: Any, key: str) -> bool:
        planes = chain.from_iterable(map(self._family.planes, self.param_groups))
        average = (AVERAGED, AVERAGE) if self._options.average_interval else ()
        return key in ("step", *self._family.scalars, RESIDUE, *average, *planes) and any(
            parameter is own for group in self.param_groups for own in group["params"])

    def _state_remove(self, parameter: Any, key: str) -> None:
        extras = self._extras.get(parameter, {})
        if key in extras:
            del extras[key]
            return
        place = self._place(parameter)
        if place is None or key not in place[0].keys(place[1]):
            raise KeyError(key)
        place[0].clear(place[1])  # what is left of a state without one of its parts is none

    def _state_clear(self, parameter: Any) -> None:
        self._extras.pop(parameter, None)
        place = self._place(parameter)
        if place is not None:
            place[0].clear(place[1])

    # ---- saving ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As torch's, and loads into torch's class of the same name.

        State in host memory is given as torch gives it: the optimizer's own tensors, which later steps change. If a
        part is on the drive, all of it is copied into a file without a name in the `nvme` folder and the tensors are
        maps of that: no host memory is needed, and the file goes with the last of them. A bf16 parameter's exact
        value needs its "residue" (int16) too. Raises OSError if the drive is full.
        """
        for pre_hook in self._optimizer_state_dict_pre_hooks.values():
            pre_hook(self)
        numbers: dict[Tensor, int] = {}
        groups, listed = [], 0
        for group in self.param_groups:
            groups.append(self._packed_group(group, numbers, listed))
            listed += len(group["params"])
        result: dict[str, Any] = {"state": self._packed_state(numbers), "param_groups": groups}
        for post_hook in self._optimizer_state_dict_post_hooks.values():
            changed = post_hook(self, result)
            result = result if changed is None else changed
        return result

    @staticmethod
    def _packed_group(group: dict[str, Any], numbers: dict[Tensor, int], start: int) -> dict[str, Any]:
        # A parameter that is listed twice keeps its first number, and its second one is not used: as in torch.
        for number, parameter in enumerate(group["params"], start):
            numbers.setdefault(parameter, number)
        packed = {key: value for key, value in group.items() if key != "params"}
        packed["params"] = [numbers[parameter] for parameter in group["params"]]
        return packed

    def _packed_state(self, numbers: dict[Tensor, int]) -> dict[Any, dict[str, Any]]:
        if self._engine is None and self._stash:
            found = self._stash
        else:
            engine = self._settled_engine()
            found = {} if engine is None else snapshot.take(engine, self._options.nvme)
        state: dict[Any, dict[str, Any]] = {number: dict(found[parameter]) for parameter, number in numbers.items()
                                            if parameter in found}
        for key, extras in self._extras.items():
            state.setdefault(numbers.get(key, key) if isinstance(key, Tensor) else key, {}).update(extras)
        return state

    # ---- loading ---------------------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what torch's class or this one gave. Values are copied.

        Raises ValueError naming parameter and key for a missing part or another shape; then nothing has changed.
        Raises Refused if the state does not fit into memory and drive; then the values wait for the next step().
        """
        state_dict = dict(state_dict)
        for pre_hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = pre_hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups = self._unpacked_groups(copy.deepcopy(state_dict["param_groups"]))
        parameters = dict(zip(chain.from_iterable(group["params"] for group in state_dict["param_groups"]),
                              chain.from_iterable(group["params"] for group in self.param_groups), strict=True))
        stash, extras = self._sorted_state(state_dict["state"], parameters, groups)
        self._settled_engine_dropped()
        self.param_groups = groups
        self._stash, self._extras = stash, extras
        if stash:
            with torch.no_grad():
                self._prepare()
        for post_hook in self._optimizer_load_state_dict_post_hooks.values():
            post_hook(self)

    def _settled_engine_dropped(self) -> None:
        if self._stream is not None:
            raise RuntimeError("gradients were given in last_micro_batch(): call step() first")
        self.wait()
        self._engine = None

    def _unpacked_groups(self, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        for own, loaded in zip(self.param_groups, saved, strict=True):
            if len(own["params"]) != len(loaded["params"]):
                raise ValueError("loaded state dict contains a parameter group that doesn't match the size of "
                                 "optimizer's group")
            loaded["params"] = own["params"]
            if "param_names" in own:
                loaded.setdefault("param_names", own["param_names"])
            for key, value in self.defaults.items():
                loaded.setdefault(key, value)
            # These say how torch's class would have run; here there is one way.
            loaded.update({flag: False for flag in ("capturable", "differentiable") if flag in loaded})
            loaded.update(self._fixed_fields)
        return saved

    def _sorted_state(self, saved: Mapping[Any, Mapping[str, Any]], parameters: dict[Any, Tensor],
                      groups: list[dict[str, Any]]) -> tuple[snapshot.Snapshot, dict[Any, dict[str, Any]]]:
        """Planes and counters, checked, and the rest."""
        places = {parameter: (group, f"{position} of group {index}") for index, group in enumerate(groups)
                  for position, parameter in enumerate(group["params"])}
        stash: snapshot.Snapshot = {}
        extras: dict[Any, dict[str, Any]] = {}
        for key, values in saved.items():
            parameter = parameters.get(key)
            if parameter is None:
                extras[key] = dict(values)
                continue
            group, name = places[parameter]
            planes, rest = self._own_parts(parameter, name, dict(values), group)
            if planes:
                stash[parameter] = planes
            if rest:
                extras[parameter] = rest
        return stash, extras

    def _own_parts(self, parameter: Tensor, name: str, values: dict[str, Any],
                   group: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        needed = self._family.names(self._family.planes(group), parameter.shape)
        step = ("step",) if self._family.counts_steps else ()
        scalars = self._family.scalars
        found = {key: values.pop(key) for key in (*scalars, *needed, *self._family.lasting) if key in values}
        found = {key: value for key, value in found.items() if value is not None}
        residue = values.pop(RESIDUE, None)
        was_updated = bool(found) and ("step" not in found or float(found["step"]) != 0)
        average = self._own_average(name, values, was_updated=was_updated)
        missing = [key for key in (*step, *needed) if key not in found]
        if missing and found and set(found) - set(self._family.lasting):
            raise ValueError(f"the loaded state of parameter {name} has {', '.join(found)} but not "
                             f"{', '.join(missing)}; it is of another optimizer or of other settings")
        for key, value in found.items():
            if key not in scalars:
                snapshot.check_value(name, self._family.shape_of(key, parameter.shape), key, value)
        # Torch's classes turn it into the parameter's dtype when they load it; then it is no residue any more.
        if isinstance(residue, Tensor) and residue.dtype is torch.int16 and parameter.dtype is torch.bfloat16:
            snapshot.check_value(name, parameter.shape, RESIDUE, residue)
            found[RESIDUE] = residue
        if AVERAGE in average:
            snapshot.check_value(name, parameter.shape, AVERAGE, average[AVERAGE])
        return {**found, **average}, values

    def _own_average(self, name: str, values: dict[str, Any], *, was_updated: bool) -> dict[str, Any]:
        """The parts of `values` that belong to the average, taken out of it."""
        found = {key: values.pop(key) for key in (AVERAGED, AVERAGE) if key in values}
        if found and not self._options.average_interval:
            raise ValueError(f"the loaded state of parameter {name} has an average of its values, and this optimizer "
                             "keeps none: make it with average=, or take \"averaged\" and \"average\" out of the state")
        if AVERAGED not in found and (was_updated or found) and self._options.average_interval:
            raise ValueError(f"the loaded state of parameter {name} has no average of its values, which began with its "
                             "first update: load it into an optimizer without average=")
        interval = self._options.average_interval
        if AVERAGED in found and AVERAGE not in found and int(float(found[AVERAGED])) >= interval:
            raise ValueError(f"the loaded state of parameter {name} has \"averaged\": {int(float(found[AVERAGED]))} "
                             f"but no \"average\", which begins after {interval} updates with average="
                             f"\"{self._options.average}\": load it with the average= with which it was saved, or into "
                             "an optimizer without, with \"averaged\" taken out of it")
        return found

    # ---- copies ----------------------------------------------------------------------------------------------

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: its state lies in native memory and on a "
                        "drive; save state_dict() and load it into a new optimizer")

