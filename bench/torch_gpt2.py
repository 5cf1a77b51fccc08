# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The yardstick of train_speed.py: the same model trained by plain torch in fp32 with fused AdamW.

Prints one JSON line: median tokens per second over the steps after the first two.
"""
import argparse
import json
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name in ("layers", "hidden", "heads", "batch", "seq", "steps", "threads"):
    parser.add_argument(f"--{name}", type=int, required=True)
parser.add_argument("--data", required=True)
options = parser.parse_args()
torch.set_num_threads(options.threads)
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        hidden = options.hidden
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, seq, hidden = x.shape
        heads = lambda t: t.view(batch, seq, options.heads, -1).transpose(1, 2)
        q, k, v = map(heads, self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, options.hidden), nn.Embedding(options.seq, options.hidden)
        self.blocks = nn.Sequential(*(Block() for _ in range(options.layers)))
        self.norm = nn.LayerNorm(options.hidden)
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def loss(self, windows):
        x = self.wte(windows[:, :-1]) + self.wpe.weight
        logits = self.norm(self.blocks(x)) @ self.wte.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


text = torch.frombuffer(bytearray(open(options.data, "rb").read()), dtype=torch.uint8)
model = Gpt2()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
seconds = []
for step in range(options.steps):
    starts = torch.randint(len(text) - options.seq - 1, (options.batch,))
    windows = torch.stack([text[start : start + options.seq + 1] for start in starts]).long()
    began = time.perf_counter()
    loss = model.loss(windows)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    seconds.append(time.perf_counter() - began)
tokens = options.batch * options.seq
print(json.dumps({"tokens_per_s": tokens / statistics.median(seconds[2:]), "loss": loss.item()}))
