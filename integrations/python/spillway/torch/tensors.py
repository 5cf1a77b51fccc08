# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Tensors as the engine sees them: runs of elements in the order in which they lie in memory.

Elementwise updates do not care about shape, so a dense tensor with permuted strides (channels_last, a transposed
weight) is updated in place in its own memory order, as long as gradient and state are given in the same order.
"""
from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

PARAMETER_TYPES = (torch.float32, torch.bfloat16)
GRADIENT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one run of memory, each once, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def _has_memory(tensor: Tensor) -> bool:
    try:
        storage = tensor.untyped_storage()
        end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
        return storage.device.type == "cpu" and storage.nbytes() >= end and (end == 0 or tensor.data_ptr() != 0)
    except RuntimeError:  # a fake tensor, or one that wraps others
        return False


def _refusal(tensor: Tensor) -> str | None:
    if tensor.layout is not torch.strided:
        return f"it is sparse ({tensor.layout}); only dense parameters can be offloaded"
    if tensor.device.type == "meta":
        return "it is on meta, so it has no values yet; give the model its values before the optimizer"
    if tensor.device.type != "cpu":
        return f"it is on {tensor.device}; this version updates parameters on the CPU"
    if tensor.is_complex():
        return f"it is complex ({tensor.dtype}); give torch.view_as_real of it"
    if tensor.dtype not in PARAMETER_TYPES:
        return f"its dtype is {tensor.dtype}; only torch.float32 and torch.bfloat16 can be offloaded"
    if not is_dense(tensor):
        return (f"its elements overlap or have gaps (shape {tuple(tensor.shape)}, strides {tensor.stride()}); give a "
                "contiguous tensor")
    if not _has_memory(tensor):
        return f"a {type(tensor).__name__} has no memory of its own for its values; give a plain tensor"
    return None


def check_parameter(name: str, tensor: Tensor) -> None:
    """Raises ValueError naming the parameter, what it is and what it should be."""
    reason = _refusal(tensor)
    if reason is not None:
        raise ValueError(f"parameter {name} cannot be offloaded: {reason}")


def in_memory_order(tensor: Tensor) -> Tensor:
    """A 1-D view of a dense tensor, detached, in the order of its memory."""
    flat = tensor.detach()
    if flat.is_contiguous():
        return flat.view(-1)
    return flat.as_strided((flat.numel(),), (1,))


def like_parameter(flat: Tensor, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    """The inverse: a view of a 1-D tensor with a parameter's shape, in that parameter's memory order."""
    return flat.as_strided(shape, stride) if flat.numel() else flat.view(shape)


def arranged(values: Tensor, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    """`values` as a 1-D run in the memory order given by `stride`: a view if it lies so, else a copy."""
    values = values.detach().resolve_conj().resolve_neg()
    if values.stride() == stride or (values.is_contiguous() and contiguous_stride(shape) == stride):
        return in_memory_order(values)
    copy = torch.empty_strided(shape, stride, dtype=values.dtype, device=values.device)
    copy.copy_(values)
    return in_memory_order(copy)


def contiguous_stride(shape: torch.Size) -> tuple[int, ...]:
    """Strides of a row-major tensor, as torch writes them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def gradient_run(name: str, owner: str, gradient: Tensor, shape: torch.Size, stride: tuple[int, ...]) -> Tensor:
    """The gradient in its parameter's memory order, without a copy where it lies so already.

    Raises RuntimeError for a sparse one, TypeError for a device or dtype that cannot be.
    """
    if gradient.layout is not torch.strided:
        raise RuntimeError(f"{owner} does not support sparse gradients (parameter {name}); give dense ones, e.g. "
                           "Embedding(sparse=False)")
    if gradient.device.type != "cpu" or gradient.dtype not in GRADIENT_TYPES:
        raise TypeError(f"the gradient of parameter {name} is {gradient.dtype} on {gradient.device}; needed is "
                        "torch.float32, torch.bfloat16 or torch.float16 on the CPU")
    if gradient.stride() == stride and gradient.is_contiguous() and not (gradient.requires_grad or gradient.is_neg()):
        return gradient  # the usual case; the engine takes any shape without gaps
    return arranged(gradient, shape, stride)


def refuse_shared_memory(named: list[tuple[str, Tensor]]) -> None:
    """Two parameters that share memory would be updated twice, in an order of their own."""
    runs = sorted((t.data_ptr(), t.data_ptr() + t.numel() * t.element_size(), name) for name, t in named if t.numel())
    for (_, end, first), (start, _, second) in pairwise(runs):
        if start < end:
            raise ValueError(f"parameters {first} and {second} share memory; give the tensor that owns it, once")
