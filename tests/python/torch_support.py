# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What the tests of spillway.torch share: a small transformer, its data, and comparisons."""
import copy
import math
import os
import re
import sys
import tempfile
import unittest
import warnings

SKIP = 77

try:
    import spillway  # noqa: F401
    import torch
except ModuleNotFoundError as error:
    if error.name not in ("spillway", "torch"):
        raise
    print(f"SKIPPED: {error}")
    sys.exit(SKIP)

import spillway.torch as st
from spillway import Refused
from torch import nn

torch.set_num_threads(1)
VOCABULARY, WIDTH, HEADS, CONTEXT = 61, 32, 4, 12

# (spillway's class, torch's class or None, arguments) of every optimizer, with and without its optional state.
CASES = [
    ("AdamW", {"lr": 3e-3, "weight_decay": 0.1}),
    ("AdamW", {"lr": 3e-3, "amsgrad": True}),
    ("Adam", {"lr": 3e-3, "weight_decay": 0.01, "eps": 1e-6}),
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("Adagrad", {"lr": 0.02, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    ("RMSprop", {"lr": 1e-3, "eps": 1e-4}),
    ("RMSprop", {"lr": 1e-3, "eps": 1e-3, "momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    ("Lion", {"lr": 1e-3, "weight_decay": 0.1}),
    ("NAdam", {"lr": 2e-3, "weight_decay": 0.01, "eps": 1e-6}),
    ("NAdam", {"lr": 2e-3, "weight_decay": 0.1, "momentum_decay": 0.02, "decoupled_weight_decay": True}),
    ("Adafactor", {"lr": 0.02}),
    ("Adafactor", {"lr": 0.02, "beta2_decay": -0.6, "eps": (1e-6, 1e-2), "d": 1.5, "weight_decay": 0.1}),
]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        # Without bias: the gradient of a key's bias is zero but for rounding, and Adam makes whole steps of that.
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A language model with tied embeddings, a scalar gain and a parameter that is frozen from the start. `rows` of
    another embedding make its state as large as a test needs it."""

    def __init__(self, layers=2, rows=0):
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH) if rows else None
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.positions.weight.requires_grad_(False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        if self.table is not None:
            x = x + self.table(tokens * 523 % self.table.num_embeddings)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) * self.gain

    def loss(self, tokens):
        logits = self(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def model(seed=0, dtype=torch.float32, rows=0):
    torch.manual_seed(seed)
    return Transformer(rows=rows).to(dtype)


ROWS = 40_000  # 1.3 million parameters: more state than the engine's smallest staging


def budgets(name, arguments, folder, dtype=torch.float32):
    """Bytes of host memory with which all and half of the state of a model with ROWS lies on the drive."""
    net = model(dtype=dtype, rows=ROWS)
    net.loss(batch(0)).backward()
    try:
        make(st, name, net, arguments, nvme=folder, host_mem=4096)
    except Refused as refusal:
        least = int(re.search(r"(\d+) bytes are needed", str(refusal))[1])
    optimizer = make(st, name, net, arguments)
    optimizer.step()
    return least, least + optimizer.statistics()["state_bytes"] // 2


def batch(step, size=3):
    generator = torch.Generator().manual_seed(1000 + step)
    start = torch.randint(0, VOCABULARY, (size, 1), generator=generator)
    return (start + torch.arange(CONTEXT + 1) * 7) % VOCABULARY


def groups(net):
    """Interleaved: decay for matrices, none and another learning rate for the rest."""
    matrices = [p for p in net.parameters() if p.dim() > 1]
    return [{"params": matrices}, {"params": [p for p in net.parameters() if p.dim() <= 1], "weight_decay": 0.0}]


def make(library, name, net, arguments, **offload):
    if library is torch.optim and name == "Lion":
        return ReferenceLion(groups(net), **arguments)
    return getattr(library, name)(groups(net), **arguments, **offload)


class ReferenceLion(torch.optim.Optimizer):
    """Chen et al. 2023, Algorithm 2, written from the paper."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                gradient = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = torch.sign(beta1 * m + (1 - beta1) * gradient)
                p.sub_(group["lr"] * (direction + group["weight_decay"] * p))
                m.mul_(beta2).add_(gradient, alpha=1 - beta2)


def bits(net):
    """Every parameter's bytes."""
    return {name: p.detach().contiguous().view(torch.uint8 if p.dim() else p.dtype).clone()
            for name, p in net.named_parameters()}


def same_bits(first, second):
    a, b = bits(first), bits(second)
    return [name for name in a if not torch.equal(a[name], b[name])]


def distance(first, second):
    """Relative L2 distance over all parameters, in double."""
    squares = lambda tensors: sum(float((t.double() ** 2).sum()) for t in tensors)
    pairs = list(zip(first.parameters(), second.parameters()))
    return math.sqrt(squares(a.detach().double() - b.detach().double() for a, b in pairs)
                     / squares(b.detach() for _, b in pairs))


def train(net, optimizer, steps, first=0, micro_batches=1, clip=None, schedule=None, before_step=None, **_):
    """Trains `net`, and returns the losses."""
    losses = []
    for step in range(first, first + steps):
        for part in range(micro_batches):
            loss = net.loss(batch(step * micro_batches + part)) / micro_batches
            if part + 1 == micro_batches and hasattr(optimizer, "last_micro_batch"):
                with optimizer.last_micro_batch():
                    loss.backward()
            else:
                loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        if before_step is not None:
            before_step(step)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
    if hasattr(optimizer, "wait"):
        optimizer.wait()
    return losses


def drive():
    """A folder on a drive. Nothing may be left in it when the test ends."""
    return tempfile.TemporaryDirectory(dir=os.environ.get("SPILLWAY_TEST_DRIVE", "."))


__all__ = ["CASES", "CONTEXT", "ROWS", "ReferenceLion", "Refused", "Transformer", "VOCABULARY", "WIDTH", "batch",
           "bits", "budgets", "copy", "distance", "drive", "groups", "make", "model", "nn", "same_bits", "st", "torch",
           "train", "unittest", "warnings"]
