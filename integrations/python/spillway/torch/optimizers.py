# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The optimizers: torch's own signatures and defaults, and where the state lives.

Arguments of torch's are checked by torch's class itself, so that values it refuses are refused in its words. What
the keyword-only rest means stands at spillway.torch.options.checked().
"""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from spillway.torch import families
from spillway.torch.base import OffloadedOptimizer
from spillway.torch.options import OffloadArguments

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _torch_defaults(kind: type[Optimizer], **arguments: Any) -> dict[str, Any]:
    """What torch's class makes of these arguments; raises what it raises."""
    return kind([torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True)], **arguments).defaults


class Adam(OffloadedOptimizer):
    """torch.optim.Adam (Kingma & Ba 2015) with its state in `host_mem` bytes of memory and on the drive at `nvme`.

    State: exp_avg, exp_avg_sq and with amsgrad max_exp_avg_sq, fp32.

        opt = spillway.torch.Adam(model.parameters(), lr=1e-3, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.ADAM
    _torch_class: type[Optimizer] = torch.optim.Adam

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3,
                 betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None,
                 maximize: bool = False, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None, decoupled_weight_decay: bool = False,
                 **offload: Unpack[OffloadArguments]) -> None:
        arguments: dict[str, Any] = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "foreach": foreach, "maximize": maximize, "capturable": capturable, "differentiable": differentiable,
            "fused": fused}
        if decoupled_weight_decay and self._torch_class is torch.optim.Adam:
            arguments["decoupled_weight_decay"] = True
        defaults = _torch_defaults(self._torch_class, **arguments)
        defaults.setdefault("decoupled_weight_decay", decoupled_weight_decay)  # older torch keeps none
        super().__init__(params, defaults, offload)


class AdamW(Adam):
    """torch.optim.AdamW (Loshchilov & Hutter 2019) with its state in `host_mem` bytes of memory and on the drive at
    `nvme`. State as Adam's.

        opt = spillway.torch.AdamW(model.parameters(), lr=1e-4, host_mem="4GiB", nvme="/mnt/nvme", max_grad_norm=1.0)
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _torch_class = torch.optim.AdamW
    _fixed_fields = {"decoupled_weight_decay": True}

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3,
                 betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None, **offload: Unpack[OffloadArguments]) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
                         capturable=capturable, differentiable=differentiable, fused=fused,
                         decoupled_weight_decay=True, **offload)


class NAdam(OffloadedOptimizer):
    """torch.optim.NAdam (Dozat 2016) with its state in `host_mem` bytes of memory and on the drive at `nvme`.

    State: exp_avg, exp_avg_sq, fp32, and as torch's a number mu_product. Here that is no state but computed from step,
    beta1 and momentum_decay when it is read, so one that is loaded or assigned is accepted and not used: where those
    stayed the same it is the same, and where they changed on the way, updates go on as if they had always been today's
    (as Adam's bias corrections do), while torch's keeps what each step had.

        opt = spillway.torch.NAdam(model.parameters(), lr=2e-3, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.NADAM

    def __init__(self, params: ParamsT, lr: float | Tensor = 2e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, momentum_decay: float = 4e-3,
                 decoupled_weight_decay: bool = False, *, foreach: bool | None = None, maximize: bool = False,
                 capturable: bool = False, differentiable: bool = False, **offload: Unpack[OffloadArguments]) -> None:
        defaults = _torch_defaults(
            torch.optim.NAdam, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay,
            decoupled_weight_decay=decoupled_weight_decay, foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable)
        super().__init__(params, defaults, offload)


class SGD(OffloadedOptimizer):
    """torch.optim.SGD with its state in `host_mem` bytes of memory and on the drive at `nvme`.

    State: with momentum its buffer, fp32; without, none.

        opt = spillway.torch.SGD(model.parameters(), lr=0.1, momentum=0.9, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.SGD

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, momentum: float = 0, dampening: float = 0,
                 weight_decay: float | Tensor = 0, nesterov: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
                 **offload: Unpack[OffloadArguments]) -> None:
        defaults = _torch_defaults(
            torch.optim.SGD, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
            nesterov=nesterov, maximize=maximize, foreach=foreach, differentiable=differentiable, fused=fused)
        super().__init__(params, defaults, offload)


class Adagrad(OffloadedOptimizer):
    """torch.optim.Adagrad (Duchi et al. 2011) with its state in `host_mem` bytes of memory and on the drive at
    `nvme`. State: sum, fp32, there from the start as in torch.

        opt = spillway.torch.Adagrad(model.parameters(), lr=1e-2, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.ADAGRAD

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
                 initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *,
                 maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
                 **offload: Unpack[OffloadArguments]) -> None:
        defaults = _torch_defaults(
            torch.optim.Adagrad, lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, eps=eps, foreach=foreach, maximize=maximize,
            differentiable=differentiable, fused=fused)
        super().__init__(params, defaults, offload)


class RMSprop(OffloadedOptimizer):
    """torch.optim.RMSprop (Hinton 2012; centred: Graves 2013) with its state in `host_mem` bytes of memory and on the
    drive at `nvme`. State: square_avg, with momentum momentum_buffer, centred grad_avg, fp32.

        opt = spillway.torch.RMSprop(model.parameters(), lr=1e-2, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.RMSPROP

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-2, alpha: float = 0.99, eps: float = 1e-8,
                 weight_decay: float = 0, momentum: float = 0, centered: bool = False, capturable: bool = False,
                 foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
                 **offload: Unpack[OffloadArguments]) -> None:
        defaults = _torch_defaults(
            torch.optim.RMSprop, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
            centered=centered, capturable=capturable, foreach=foreach, maximize=maximize,
            differentiable=differentiable)
        super().__init__(params, defaults, offload)


class Lion(OffloadedOptimizer):
    """Lion (Chen et al. 2023, arXiv:2302.06675, Algorithm 2, decoupled decay) with its state in `host_mem` bytes of
    memory and on the drive at `nvme`. State: exp_avg, fp32. torch has no Lion; arguments are as its other classes'.

        opt = spillway.torch.Lion(model.parameters(), lr=1e-4, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.LION

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-4,
                 betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99), weight_decay: float = 0, *,
                 maximize: bool = False, foreach: bool | None = None, capturable: bool = False,
                 differentiable: bool = False, fused: bool | None = None, **offload: Unpack[OffloadArguments]) -> None:
        # The arguments mean what Adam's mean and are checked as those are.
        defaults = _torch_defaults(
            torch.optim.Adam, lr=lr, betas=betas, weight_decay=weight_decay, foreach=foreach, maximize=maximize,
            capturable=capturable, differentiable=differentiable, fused=fused)
        for key in ("eps", "amsgrad", "decoupled_weight_decay"):
            del defaults[key]
        super().__init__(params, defaults, offload)


class LAMB(OffloadedOptimizer):
    """LAMB (You et al. 2020, arXiv:1904.00962, Algorithm 2, with bias correction) with its state in `host_mem` bytes of
    memory and on the drive at `nvme`. Each tensor's step is as long as its weights' norm says, clamped to
    `weight_norm_bounds`; a tensor whose weights or direction are all 0 takes the learning rate itself. Groups that
    should not decay (biases, norms) say weight_decay=0. State: exp_avg, exp_avg_sq. torch has no LAMB;
    arguments are as its other classes'.

        opt = spillway.torch.LAMB(model.parameters(), lr=2e-3, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.LAMB

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3,
                 betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999), eps: float = 1e-6,
                 weight_decay: float = 1e-2, weight_norm_bounds: tuple[float, float] = (0.0, math.inf), *,
                 maximize: bool = False, foreach: bool | None = None, capturable: bool = False,
                 differentiable: bool = False, fused: bool | None = None, **offload: Unpack[OffloadArguments]) -> None:
        least, most = weight_norm_bounds
        if not 0 <= least <= most:
            raise ValueError(f"Invalid weight_norm_bounds: {weight_norm_bounds}; they are 0 or more, the lower one first")
        # The other arguments mean what Adam's mean and are checked as those are.
        defaults = _torch_defaults(
            torch.optim.Adam, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=foreach,
            maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused)
        for key in ("amsgrad", "decoupled_weight_decay"):
            defaults.pop(key, None)
        super().__init__(params, {**defaults, "weight_norm_bounds": (least, most)}, offload)


class LARS(OffloadedOptimizer):
    """LARS (You et al. 2017, arXiv:1708.03888, Algorithm 1) with its state in `host_mem` bytes of memory and on the
    drive at `nvme`. Each tensor's learning rate is lr * trust_coefficient * |w| / (|g| + weight_decay * |w|); one whose
    weights or gradient are all 0 takes lr itself. State: step and momentum_buffer. torch has no LARS; arguments are
    as SGD's.

        opt = spillway.torch.LARS(model.parameters(), lr=1.0, momentum=0.9, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.LARS

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-1, momentum: float = 0.9, weight_decay: float = 1e-4,
                 trust_coefficient: float = 1e-3, *, maximize: bool = False, foreach: bool | None = None,
                 differentiable: bool = False, fused: bool | None = None, **offload: Unpack[OffloadArguments]) -> None:
        if not 0 <= trust_coefficient < math.inf:
            raise ValueError(f"Invalid trust_coefficient value: {trust_coefficient}")
        defaults = _torch_defaults(
            torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=weight_decay, maximize=maximize, foreach=foreach,
            differentiable=differentiable, fused=fused)
        for key in ("dampening", "nesterov"):
            del defaults[key]
        super().__init__(params, {**defaults, "trust_coefficient": trust_coefficient}, offload)


class Adafactor(OffloadedOptimizer):
    """torch.optim.Adafactor (Shazeer & Stern 2018, arXiv:1804.04235), with weights' residues and averages on the drive
    at `nvme` if `host_mem` bytes of memory do not hold them; its own state is a number for each row and column of a
    matrix and each element of a vector, which rests in memory. State: row_var and col_var, or variance, fp32; eps[0] is
    by default float32's, also for a bf16 parameter, whose exact value is fp32. Parameters are contiguous.

        opt = spillway.torch.Adafactor(model.parameters(), lr=1e-2, host_mem="4GiB", nvme="/mnt/nvme")
        loss.backward(); opt.step(); opt.zero_grad()
    """

    _family = families.ADAFACTOR

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-2, beta2_decay: float = -0.8,
                 eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
                 foreach: bool | None = None, maximize: bool = False, **offload: Unpack[OffloadArguments]) -> None:
        defaults = _torch_defaults(torch.optim.Adafactor, lr=lr, beta2_decay=beta2_decay, eps=eps, d=d,
                                   weight_decay=weight_decay, foreach=foreach, maximize=maximize)
        super().__init__(params, defaults, offload)
