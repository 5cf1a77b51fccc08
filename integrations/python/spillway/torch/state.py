# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""`optimizer.state` as torch's classes have it, over state that may lie on a drive.

Reading `optimizer.state[p]["exp_avg"]` gives a live view if that plane lies in host memory and a copy if a part of
it is on the drive; so change state by assigning (`optimizer.state[p]["exp_avg"] = values`), which works for both.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Protocol


class StateHolder(Protocol):
    """What an optimizer does for these mappings."""

    def _state_parameters(self) -> list[Any]: ...
    def _state_has(self, parameter: Any) -> bool: ...
    def _state_keys(self, parameter: Any) -> list[str]: ...
    def _state_get(self, parameter: Any, key: str) -> Any: ...
    def _state_set(self, parameter: Any, key: str, value: Any) -> None: ...
    def _state_remove(self, parameter: Any, key: str) -> None: ...
    def _state_clear(self, parameter: Any) -> None: ...


class ParameterState(MutableMapping[str, Any]):
    """The state of one parameter, read when it is asked for. Keys of the user's own are kept beside it."""

    def __init__(self, values: Mapping[str, Any] | None = None, *, holder: StateHolder | None = None,
                 parameter: Any = None) -> None:
        self._holder, self._parameter = holder, parameter
        self._values = dict(values or {})  # only without a holder

    def __getitem__(self, key: str) -> Any:
        if self._holder is None:
            return self._values[key]
        return self._holder._state_get(self._parameter, key)

    def __setitem__(self, key: str, value: Any) -> None:
        if self._holder is None:
            self._values[key] = value
        else:
            self._holder._state_set(self._parameter, key, value)

    def __delitem__(self, key: str) -> None:
        if self._holder is None:
            del self._values[key]
        else:
            self._holder._state_remove(self._parameter, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values if self._holder is None else self._holder._state_keys(self._parameter))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return any(own == key for own in self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"


class OptimizerState(MutableMapping[Any, ParameterState]):
    """All parameters that have state. Asking for another one gives an empty mapping, as torch's defaultdict does."""

    def __init__(self, holder: StateHolder) -> None:
        self._holder = holder

    def __getitem__(self, parameter: Any) -> ParameterState:
        return ParameterState(holder=self._holder, parameter=parameter)

    def __setitem__(self, parameter: Any, values: Mapping[str, Any]) -> None:
        given = dict(values)  # read first: they may be this parameter's own
        for key in [key for key in self._holder._state_keys(parameter) if key not in given]:
            self._holder._state_remove(parameter, key)
        for key, value in given.items():
            self._holder._state_set(parameter, key, value)

    def __delitem__(self, parameter: Any) -> None:
        if parameter not in self:
            raise KeyError(parameter)
        self._holder._state_clear(parameter)

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
