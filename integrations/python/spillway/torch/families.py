# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""How each optimizer's parameter group translates: hyper-parameters, and the names of its state planes.

A plane is one fp32 value per element. `planes()` lists them in the order in which the native side keeps them, by
the names that torch gives them in state_dict().
"""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

Group = dict[str, Any]
Hyper = dict[str, Any]
ROWS, COLUMNS, VARIANCE = "row_var", "col_var", "variance"  # of Adafactor: of a matrix the first two, of a vector the last
MU_PRODUCT = "mu_product"  # of NAdam: a function of step and hyper-parameters, which nothing has to keep


@dataclasses.dataclass(frozen=True)
class Family:
    """One optimizer of the native side."""

    native_name: str
    hyper: Callable[[Group], Hyper]
    planes: Callable[[Group], tuple[str, ...]]
    with_planes: Callable[[Hyper, tuple[str, ...]], Hyper]  # the same, changed so that it needs those planes
    lasting: tuple[str, ...] = ()  # planes that are kept when the hyper-parameters stop using them
    scalars: tuple[str, ...] = ("step",)  # one number of a tensor each, in state_dict() before the planes
    factored: bool = False  # planes are not a value for each element: see names() and shape_of()
    starts_with_state: bool = False  # state_dict() has all tensors before the first step
    start_field: str = ""  # of an optimizer's defaults: what its planes hold then, if not 0

    @property
    def counts_steps(self) -> bool:
        """state_dict() has "step"."""
        return "step" in self.scalars

    def names(self, planes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[str, ...]:
        """Those of a group's planes that a parameter of this shape has."""
        if not self.factored:
            return planes
        return tuple(name for name in planes if (name == VARIANCE) == (len(shape) < 2))

    def shape_of(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of that state of a parameter of this shape."""
        if name == ROWS:
            return (*shape[:-1], 1)
        return (*shape[:-2], 1, shape[-1]) if name == COLUMNS else tuple(shape)


def _common(group: Group) -> Hyper:
    return {"learning_rate": float(group["lr"]), "weight_decay": float(group["weight_decay"]),
            "maximise": bool(group["maximize"])}


def _betas(group: Group) -> Hyper:
    first, second = group["betas"]
    return {"beta1": float(first), "beta2": float(second)}


def _moments(group: Group) -> Hyper:
    return {**_common(group), **_betas(group), "epsilon": float(group["eps"]),
            "decay": "decoupled" if group["decoupled_weight_decay"] else "l2"}


def _adam(group: Group) -> Hyper:
    return {**_moments(group), "amsgrad": bool(group["amsgrad"])}


def _nadam(group: Group) -> Hyper:
    return {**_moments(group), "nesterov": True, "momentum_decay": float(group["momentum_decay"])}


def _sgd(group: Group) -> Hyper:
    return {**_common(group), "momentum": float(group["momentum"]), "dampening": float(group["dampening"]),
            "nesterov": bool(group["nesterov"]) and group["momentum"] != 0}


def _adagrad(group: Group) -> Hyper:
    # Where the sums start is a matter of the state (Engine's `start`), which may also come from a checkpoint.
    return {**_common(group), "learning_rate_decay": float(group["lr_decay"]), "epsilon": float(group["eps"]),
            "initial_accumulator_value": 0.0}


def _lion(group: Group) -> Hyper:
    return {**_common(group), **_betas(group)}


def _rmsprop(group: Group) -> Hyper:
    return {**_common(group), "alpha": float(group["alpha"]), "epsilon": float(group["eps"]),
            "momentum": float(group["momentum"]), "centred": bool(group["centered"])}


def _lamb(group: Group) -> Hyper:
    least, most = group["weight_norm_bounds"]
    return {**_common(group), **_betas(group), "epsilon": float(group["eps"]), "least_weight_norm": float(least),
            "most_weight_norm": float(most)}


def _lars(group: Group) -> Hyper:
    return {**_common(group), "momentum": float(group["momentum"]),
            "trust_coefficient": float(group["trust_coefficient"])}


def _adafactor(group: Group) -> Hyper:
    least_root, least_scale = group["eps"]
    return {**_common(group), "beta2_decay": float(group["beta2_decay"]), "clip_threshold": float(group["d"]),
            "epsilon1": None if least_root is None else float(least_root), "epsilon2": float(least_scale)}


def _rmsprop_planes(group: Group) -> tuple[str, ...]:
    momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
    return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))


def _adam_planes(group: Group) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))


def _same(hyper: Hyper, _: tuple[str, ...]) -> Hyper:
    return hyper


ADAM = Family("adam", _adam, _adam_planes,
              lambda hyper, planes: {**hyper, "amsgrad": hyper["amsgrad"] or "max_exp_avg_sq" in planes},
              lasting=("max_exp_avg_sq",))
NADAM = Family("adam", _nadam, lambda group: ("exp_avg", "exp_avg_sq"), _same, scalars=("step", MU_PRODUCT))
SGD = Family("sgd", _sgd, lambda group: ("momentum_buffer",) if group["momentum"] != 0 else (),
             lambda hyper, planes: {**hyper, "momentum": hyper["momentum"] or 0.5} if planes else hyper,
             lasting=("momentum_buffer",), scalars=())
ADAGRAD = Family("adagrad", _adagrad, lambda group: ("sum",), _same, starts_with_state=True,
                 start_field="initial_accumulator_value")
LION = Family("lion", _lion, lambda group: ("exp_avg",), _same, scalars=())
RMSPROP = Family("rmsprop", _rmsprop, _rmsprop_planes, _same)
LAMB = Family("lamb", _lamb, lambda group: ("exp_avg", "exp_avg_sq"), _same)
LARS = Family("lars", _lars, lambda group: ("momentum_buffer",), _same)
ADAFACTOR = Family("adafactor", _adafactor, lambda group: (ROWS, COLUMNS, VARIANCE), _same, factored=True)
