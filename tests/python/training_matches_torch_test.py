# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""50 training steps against an independent implementation in torch, from the same weights on the same data.

usage: training_matches_torch_test.py SPILLWAY

The initial weights come through `export`. The windows of the text, the schedule, the clipping and AdamW's
two groups are written again here from their documentation. The fp32 loss must agree within 1e-4
relative at every step. Exit code 77: torch is not installed.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

SKIP = 77
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "engine" / "data" / "kjv.txt"
LAYERS, HIDDEN, HEADS, CONTEXT, SEQUENCE, BATCH, STEPS, SEED = 3, 96, 4, 80, 64, 4, 50, 11
LEARNING_RATE, WARMUP, DECAY, CLIP, BETAS = 2e-3, 10, 0.1, 0.7, (0.9, 0.95)
LARGEST_DIFFERENCE = 1e-4

try:
    import torch
    from safetensors.torch import load_file
    from torch.nn import functional
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(SKIP)

WORD = (1 << 64) - 1


def mix(x):
    """splitmix64: the step and the finaliser (Steele, Lea & Flood 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & WORD
    return x ^ x >> 31


def training_window(text, iteration, sequence):
    """As engine/data/byte_corpus.h and held_out_split.h describe it."""
    length = SEQUENCE + 1
    block = min(1 << 16, 1 << ((len(text) // 64).bit_length() - 1))
    group = 16 * block
    groups = len(text) // group
    per_group = group - block - length + 1
    last = max(0, len(text) - groups * group - length + 1)
    windows = groups * per_group + last
    purpose = int.from_bytes(b"data", "big")
    drawn = mix(mix(mix(mix(purpose) + SEED) + iteration) + sequence) * windows >> 64
    start = min(drawn // per_group, groups)
    offset = start * group + drawn - start * per_group
    return list(text[offset : offset + length])


class Gpt2(torch.nn.Module):
    """Radford et al. 2019; the tensors of an exported folder."""

    def __init__(self, weights):
        super().__init__()
        self.names = sorted(weights)
        self.tensors = torch.nn.ParameterList(torch.nn.Parameter(weights[name].clone()) for name in self.names)

    def loss(self, windows):
        weights = dict(zip((name.removeprefix("transformer.") for name in self.names), self.tensors))
        norm = lambda x, name: functional.layer_norm(x, (HIDDEN,), weights[name + ".weight"], weights[name + ".bias"], 1e-5)
        linear = lambda x, name: x @ weights[name + ".weight"] + weights[name + ".bias"]
        tokens, targets = windows[:, :-1], windows[:, 1:]
        x = weights["wte.weight"][tokens] + weights["wpe.weight"][:SEQUENCE]
        for layer in range(LAYERS):
            at = f"h.{layer}."
            heads = lambda t: t.view(BATCH, SEQUENCE, HEADS, HIDDEN // HEADS).transpose(1, 2)
            q, k, v = map(heads, linear(norm(x, at + "ln_1"), at + "attn.c_attn").split(HIDDEN, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(mixed.transpose(1, 2).reshape(BATCH, SEQUENCE, HIDDEN), at + "attn.c_proj")
            inner = functional.gelu(linear(norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="tanh")
            x = x + linear(inner, at + "mlp.c_proj")
        logits = norm(x, "ln_f") @ weights["wte.weight"].T
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def run(program, *arguments):
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{program} {arguments} gave {done.returncode}:\n{done.stderr}")


def spillway_losses(program, folder):
    shared = ["--model", f"gpt2:{LAYERS}x{HIDDEN}x{HEADS}", "--context", CONTEXT, "--seq", SEQUENCE, "--batch", BATCH,
              "--data", CORPUS, "--seed", SEED, "--host-mem", "256MiB", "--probe", "off", "--weight-decay", DECAY,
              "--clip", CLIP, "--beta1", BETAS[0], "--beta2", BETAS[1], "--schedule", "constant"]
    run(program, "train", *shared, "--lr", 0, "--steps", 1, "--out", folder / "start")
    run(program, "export", folder / "start", folder / "weights")
    run(program, "train", *shared, "--lr", LEARNING_RATE, "--warmup", WARMUP, "--steps", STEPS, "--out", folder / "run")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def torch_losses(weights):
    text = CORPUS.read_bytes()
    model = Gpt2(weights)
    matrices = [t for t in model.tensors if t.dim() >= 2]
    vectors = [t for t in model.tensors if t.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=LEARNING_RATE, betas=BETAS, eps=1e-8)
    losses = []
    for iteration in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (iteration + 1) / WARMUP)
        windows = torch.tensor([training_window(text, iteration, sequence) for sequence in range(BATCH)])
        loss = model.loss(windows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.tensors, CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = pathlib.Path(name)
        ours = spillway_losses(sys.argv[1], folder)
        theirs = torch_losses(load_file(folder / "weights" / "model.safetensors"))
    assert len(ours) == len(theirs) == STEPS
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
    print(f"{STEPS} steps, loss {ours[0]:.5f} to {ours[-1]:.5f}, torch {theirs[-1]:.5f}; "
          f"largest relative difference {worst:.2e}")
    assert math.isfinite(worst) and worst <= LARGEST_DIFFERENCE, worst
    assert ours[-1] < ours[0] - 0.5, "the model did not learn, so agreement says little"


main()
