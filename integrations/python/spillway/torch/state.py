# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""`optimizer.state` as torch's classes have it, over state that may lie on a drive.

Reading `optimizer.state[p]["exp_avg"]` gives a live view if that plane lies in host memory as float32 and a copy if
a part of it is on the drive or it is kept in another format; so change state by assigning (`optimizer.state[p]["exp_avg"] = values`), which works for both.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol
from weakref import WeakValueDictionary

from torch import Tensor


class StateHolder(Protocol):
    """What an optimizer does for these mappings."""

    def _state_parameters(self) -> list[Any]: ...
    def _state_has(self, parameter: Any) -> bool: ...
    def _state_keys(self, parameter: Any) -> list[str]: ...
    def _state_get(self, parameter: Any, key: str) -> Any: ...
    def _state_set(self, parameter: Any, key: str, value: Any) -> None: ...
    def _state_remove(self, parameter: Any, key: str) -> None: ...
    def _state_clear(self, parameter: Any) -> None: ...


class _Detached:
    """State that is no optimizer's any more, as a StateHolder."""

    def __init__(self, values: Mapping[Any, Mapping[str, Any]]) -> None:
        self._values = {parameter: dict(own) for parameter, own in values.items()}

    def _state_parameters(self) -> list[Any]:
        return list(self._values)

    def _state_has(self, parameter: Any) -> bool:
        return parameter in self._values

    def _state_keys(self, parameter: Any) -> list[str]:
        return list(self._values.get(parameter, ()))

    def _state_get(self, parameter: Any, key: str) -> Any:
        return self._values.get(parameter, {})[key]

    def _state_set(self, parameter: Any, key: str, value: Any) -> None:
        self._values.setdefault(parameter, {})[key] = value

    def _state_remove(self, parameter: Any, key: str) -> None:
        del self._values.get(parameter, {})[key]

    def _state_clear(self, parameter: Any) -> None:
        self._values.pop(parameter, None)


def _copied(holder: StateHolder, parameter: Any) -> dict[str, Any]:
    values = {key: holder._state_get(parameter, key) for key in holder._state_keys(parameter)}
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in values.items()}


class ParameterState(MutableMapping[str, Any]):
    """The state of one parameter, read when it is asked for. Keys of the user's own are kept beside it. When the
    optimizer drops or replaces it, it keeps the values that it had."""

    def __init__(self, values: Mapping[str, Any] | None = None, *, holder: StateHolder | None = None,
                 parameter: Any = None) -> None:
        self._holder: StateHolder = _Detached({parameter: values or {}}) if holder is None else holder
        self._parameter = parameter

    def _detach(self) -> None:
        self._holder = _Detached({self._parameter: _copied(self._holder, self._parameter)})

    def __getitem__(self, key: str) -> Any:
        return self._holder._state_get(self._parameter, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._holder._state_set(self._parameter, key, value)

    def __delitem__(self, key: str) -> None:
        self._holder._state_remove(self._parameter, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._holder._state_keys(self._parameter))

    def __len__(self) -> int:
        return len(self._holder._state_keys(self._parameter))

    def __contains__(self, key: object) -> bool:
        return key in self._holder._state_keys(self._parameter)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"


HandedOut = WeakValueDictionary[Any, ParameterState]


def let_go(handed_out: HandedOut, *parameters: Any) -> None:
    """What was handed out for these keeps the values that it shows."""
    for parameter in parameters:
        state = handed_out.pop(parameter, None)
        if state is not None:
            state._detach()


class OptimizerState(MutableMapping[Any, ParameterState]):
    """All parameters that have state. Asking for another one gives an empty mapping, as torch's defaultdict does."""

    def __init__(self, holder: StateHolder, handed_out: HandedOut) -> None:
        self._holder = holder
        self._handed_out = handed_out

    def _detach(self) -> None:
        """From now on this keeps the values of now, whatever becomes of the optimizer's."""
        let_go(self._handed_out, *self._handed_out)
        self._holder = _Detached({parameter: _copied(self._holder, parameter) for parameter in self})
        self._handed_out = WeakValueDictionary()

    def __getitem__(self, parameter: Any) -> ParameterState:
        found = self._handed_out.get(parameter)
        if found is None:
            found = ParameterState(holder=self._holder, parameter=parameter)
            self._handed_out[parameter] = found
        return found

    def __setitem__(self, parameter: Any, values: Mapping[str, Any]) -> None:
        if values is self._handed_out.get(parameter):
            return
        given = dict(values)  # read first: they may be this parameter's own
        let_go(self._handed_out, parameter)
        for key in self._holder._state_keys(parameter):
            # A part that goes may have taken others with it.
            if key not in given and key in self._holder._state_keys(parameter):
                self._holder._state_remove(parameter, key)
        for key, value in given.items():
            self._holder._state_set(parameter, key, value)

    def __delitem__(self, parameter: Any) -> None:
        if parameter not in self:
            raise KeyError(parameter)
        let_go(self._handed_out, parameter)
        self._holder._state_clear(parameter)

    def clear(self) -> None:
        for parameter in list(self):  # not by popitem(), which would copy every value
            del self[parameter]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._holder._state_parameters())

    def __len__(self) -> int:
        return len(self._holder._state_parameters())

    def __contains__(self, parameter: object) -> bool:
        return self._holder._state_has(parameter)

    def get(self, parameter: Any, default: Any = None) -> Any:
        return self[parameter] if parameter in self else default

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self)} parameters"
