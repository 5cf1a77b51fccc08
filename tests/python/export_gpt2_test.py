# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Trains a small model, exports it, and lets torch compute the same.

usage: export_gpt2_test.py SPILLWAY

Loads the exported folder with Hugging Face transformers where it is installed, and always with a
GPT-2 of its own written here. Exit code 77: something this test needs is not installed.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

SKIP = 77
LAYERS, HIDDEN, HEADS, CONTEXT = 2, 64, 4, 48
PROMPT, TOKENS = b"The river", 60

try:
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(f"SKIPPED: {error}; give CMake -DSPILLWAY_PYTHON=/path/to/a/python with torch and safetensors")
    sys.exit(SKIP)


def run(program, *arguments):
    """Standard output of `program`, which must succeed."""
    done = subprocess.run([str(program), *map(str, arguments)], capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{program} {arguments} gave {done.returncode}:\n{done.stderr.decode()}")
    return done.stdout


def logits_of(weights, tokens):
    """GPT-2's forward pass (Radford et al. 2019) on a folder's tensors, which must all be used."""
    left = dict(weights)

    def take(name):
        return left.pop(f"transformer.{name}").float()

    def norm(x, name):
        return torch.nn.functional.layer_norm(x, (HIDDEN,), take(f"{name}.weight"), take(f"{name}.bias"), 1e-5)

    def conv1d(x, name):
        return x @ take(f"{name}.weight") + take(f"{name}.bias")

    def gelu_new(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    length = len(tokens)
    embedding = take("wte.weight")
    x = embedding[tokens] + take("wpe.weight")[:length]
    mask = torch.full((length, length), float("-inf")).triu(1)
    for layer in range(LAYERS):
        q, k, v = conv1d(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").split(HIDDEN, dim=-1)
        q, k, v = (t.view(length, HEADS, HIDDEN // HEADS).transpose(0, 1) for t in (q, k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(HIDDEN // HEADS) + mask
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, HIDDEN)
        x = x + conv1d(mixed, f"h.{layer}.attn.c_proj")
        inner = gelu_new(conv1d(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc"))
        x = x + conv1d(inner, f"h.{layer}.mlp.c_proj")
    x = norm(x, "ln_f")
    assert not left, f"tensors that no GPT-2 has: {sorted(left)}"
    return x @ embedding.T


def check_greedy(text, logits):
    """Every byte after the prompt must be the likeliest, up to float rounding."""
    for position in range(len(PROMPT), len(text)):
        window = torch.tensor(list(text[max(0, position - CONTEXT) : position]))
        last = logits(window)[-1]
        gap = (last.max() - last[text[position]]).item()
        assert gap < 1e-3, f"byte {position} is {text[position]}, {gap} less likely than torch's"


def check_transformers(folder, weights):
    try:
        from transformers import GPT2LMHeadModel
    except ImportError:
        print("transformers is not installed: checked with the GPT-2 in this file alone")
        return
    model, report = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    model.eval()
    assert not report["unexpected_keys"] and not report["mismatched_keys"], report
    assert set(report["missing_keys"]) <= {"lm_head.weight"}, report
    tokens = torch.arange(CONTEXT) * 5 % 256
    with torch.no_grad():
        theirs = model(tokens[None]).logits[0]
    difference = (theirs - logits_of(weights, tokens)).abs().max().item()
    assert difference < 1e-4, f"transformers' logits differ from this file's by {difference}"
    print(f"transformers agrees to {difference:.1e}")


def check_bf16(full, half):
    """bf16 tensors are the masters rounded half up, the run's working weights."""
    assert full.keys() == half.keys()
    for name, master in full.items():
        assert master.dtype == torch.float32 and half[name].dtype == torch.bfloat16, name
        bits = master.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        expected = (bits + 0x8000) >> 16 & 0xFFFF
        stored = half[name].contiguous().view(torch.int16).to(torch.int64) & 0xFFFF
        assert torch.equal(stored, expected), name


def main():
    spillway = sys.argv[1]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = pathlib.Path(name)
        text = folder / "text.txt"
        text.write_bytes(b"The river runs over the weir, and what does not fit spills over.\n" * 200)
        run(spillway, "train", "--model", f"gpt2:{LAYERS}x{HIDDEN}x{HEADS}", "--context", CONTEXT,
            "--data", text, "--batch", 4, "--steps", 40, "--lr", "3e-3", "--seed", 5, "--host-mem", "256MiB",
            "--probe", "off", "--out", folder / "run")
        for dtype in ("fp32", "bf16"):
            run(spillway, "export", folder / "run", folder / dtype, "--dtype", dtype)
        config = json.loads((folder / "fp32/config.json").read_text())
        assert config["architectures"] == ["GPT2LMHeadModel"] and config["n_layer"] == LAYERS, config
        weights = load_file(folder / "fp32/model.safetensors")
        check_bf16(weights, load_file(folder / "bf16/model.safetensors"))
        check_transformers(folder / "fp32", weights)
        written = run(spillway, "generate", folder / "run", "--prompt", PROMPT.decode(), "--tokens", TOKENS,
                      "--temperature", 0)
        assert written.startswith(PROMPT) and len(written) == len(PROMPT) + TOKENS + 1, written
        with torch.no_grad():
            check_greedy(written[:-1], lambda tokens: logits_of(weights, tokens))
        print("torch writes on as spillway does:", written)


if __name__ == "__main__":
    main()
