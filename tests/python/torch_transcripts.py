# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What torch's own optimizers and its GradScaler do, as numbers that the tests of cpu_optim/ hold kernels against.

`python3 tests/python/torch_transcripts.py > tests/cpu_optim/torch_transcripts.h` writes the header;
torch_transcripts_test.py checks it against the torch that is installed. Gradients and first weights are made of
integers alone, so that C++ (tests/cpu_optim/torch_inputs.h) finds the same bits.
"""
import struct

import torch

STEPS = 200
MASK = (1 << 64) - 1
MATRIX, VECTOR, BATCH = (5, 7), (19,), (2, 3, 4)


def bits(stream: int, n: int) -> int:
    """sample_bits() of tests/cpu_optim/sample_values.h."""
    z = (stream * 0xD1342543DE82EF95 + n * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def value(stream: int, n: int, least_exponent: int, exponents: int) -> float:
    """A float of either sign, of magnitudes from 2^least_exponent up to 2^(least_exponent + exponents)."""
    random = bits(stream, n)
    exponent = 127 + least_exponent + (random >> 40) % exponents
    return struct.unpack("<f", struct.pack("<I", (random & 0x807FFFFF) | exponent << 23))[0]


def tensor(stream: int, first: int, shape: tuple, least_exponent: int, exponents: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    values = [value(stream, first + i, least_exponent, exponents) for i in range(count)]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


def gradient(step: int, shape: tuple) -> torch.Tensor:
    """From 7e-9 to 1e3, of changing sign."""
    return tensor(102, 1000 * step, shape, -27, 37)


ADAFACTOR = [
    ("defaults", {}),
    ("every argument", {"lr": 0.05, "beta2_decay": -0.6, "eps": (1e-4, 0.01), "d": 2.0, "weight_decay": 0.1,
                        "maximize": True}),
]
ELEMENTWISE = [
    ("AdamW", {"lr": 3e-3, "weight_decay": 0.1}),
    ("AdamW", {"lr": 3e-3, "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    ("Adam", {"lr": 3e-3, "weight_decay": 0.01}),
    ("NAdam", {"lr": 2e-3, "weight_decay": 0.01}),
    ("SGD", {"lr": 1e-3, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 1e-3, "momentum": 0.9, "nesterov": True}),
    ("Adagrad", {"lr": 0.02, "lr_decay": 0.01, "initial_accumulator_value": 0.1, "weight_decay": 0.01}),
    ("RMSprop", {"lr": 1e-3, "alpha": 0.9, "weight_decay": 0.01}),
    ("RMSprop", {"lr": 1e-3, "momentum": 0.5, "centered": True}),
]


def weights_after(name: str, arguments: dict, shape: tuple) -> torch.Tensor:
    torch.set_num_threads(1)
    parameter = torch.nn.Parameter(tensor(101, 0, shape, -7, 7))
    optimizer = getattr(torch.optim, name)([parameter], foreach=False, **arguments)
    for step in range(1, STEPS + 1):
        parameter.grad = gradient(step, shape)
        optimizer.step()
    return parameter.detach()


SCALER = {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3}


def overflows() -> list[bool]:
    """Runs of steps with and without, long enough for growth, with ten overflows in a row among them."""
    return [bits(103, n) % 11 == 0 or 60 <= n < 70 for n in range(STEPS)]


def scales() -> list[tuple[float, int]]:
    """GradScaler's scale and growth tracker after each step."""
    scaler = torch.amp.GradScaler("cpu", **SCALER)
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    found = []
    for overflow in overflows():
        scaler.scale(torch.ones(1))
        parameter.grad = torch.tensor([float("inf") if overflow else 1.0])
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        found.append((state["scale"], state["_growth_tracker"]))
    return found


def array(name: str, values: torch.Tensor) -> str:
    words = [f"0x{word & 0xFFFFFFFF:08X}u" for word in values.flatten().view(torch.int32).tolist()]
    lines = [f"    {', '.join(words[i:i + 7])}," for i in range(0, len(words), 7)]
    return "\n".join([f"inline constexpr std::uint32_t {name}[] = {{", *lines, "};"])


def adafactor_arrays() -> dict[str, torch.Tensor]:
    shapes = {"matrix": MATRIX, "vector": VECTOR, "batch": BATCH}
    return {f"adafactor_{shape}_{n}": weights_after("Adafactor", arguments, shapes[shape])
            for shape in shapes for n, (_, arguments) in enumerate(ADAFACTOR)}


def elementwise_arrays() -> dict[str, torch.Tensor]:
    return {f"{name.lower()}_{n}": weights_after(name, arguments, VECTOR)
            for n, (name, arguments) in enumerate(ELEMENTWISE)}


def header() -> str:
    steps = "\n".join(f"    {{{scale.hex()}, {tracker}}}," for scale, tracker in scales())
    return "\n".join([
        "// SPDX-License-Identifier: Apache-2.0",
        "// SPDX-FileCopyrightText: The Spillway authors",
        "//",
        f"// Written by tests/python/torch_transcripts.py with torch {torch.__version__.split('+')[0]}: the bits of the",
        f"// weights after {STEPS} steps, and GradScaler's scale and growth tracker after each.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "// clang-format off",
        "namespace spillway::cpu_optim::testing::transcript {",
        "",
        *[array(name, values) for name, values in {**adafactor_arrays(), **elementwise_arrays()}.items()],
        "",
        "struct ScalerStep {",
        "    double scale;",
        "    std::uint64_t growth_tracker;",
        "};",
        f"inline constexpr ScalerStep scaler[] = {{\n{steps}\n}};",
        "",
        "}  // namespace spillway::cpu_optim::testing::transcript",
        ""])


if __name__ == "__main__":
    print(header(), end="")
