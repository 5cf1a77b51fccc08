# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""P1 through the program: one run, placed in many ways, ends with one set of weights. 8 steps each. Hundreds of random
combinations are in the suites (placement matrix, training matrix)."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import fresh, temporary_folder, train  # noqa: E402

RUN = ["--model", "gpt2:4x192x4", "--context", "96", "--batch", "4", "--seq", "80", "--steps", "8",
       "--lr", "3e-3", "--warmup", "3", "--probe", "off", "--eval-sequences", "4", "--seed", "7"]
DRIVE = ["--nvme", "{folder}/drive"]
DEVICE = [*DRIVE, "--device", "sim:16MiB@4GB/s"]
SMALL = [*DEVICE, "--host-mem", "24MiB", "--chunk-size", "64KiB"]

PLACEMENTS = {
    "all in memory on the cpu": [],
    "two threads": ["--threads", "2"],
    "small device, small host, drive": SMALL,
    "small, thread backend, one thread": [*SMALL, "--io-backend", "threads", "--threads", "1"],
    "small, chunks of 320 KiB": [*DEVICE, "--chunk-size", "320KiB", "--host-mem", "34MiB"],
    "small, 4 micro-batches": [*SMALL, "--micro-batches", "4"],
    "cpu, everything recomputed": ["--recompute", "full"],
    "cpu, state on the drive": [*DRIVE, "--host-mem", "38MiB", "--chunk-size", "64KiB"],
    "commits every 3 steps": [*SMALL, "--commit-every", "3"],
    "one copy on the drive": [*SMALL, "--durable", "off"],
}
MODES = {
    "clip 1": [],
    "clip 0.3": ["--clip", "0.3"],
    "no clip": ["--clip", "off"],
    "no clip, nothing waits": ["--clip", "off", "--nonfinite", "stop"],
    "bf16 state": ["--state", "bf16"],
    "int8 state": ["--state", "int8"],
    "lamb": ["--optimizer", "lamb"],
    "lars": ["--optimizer", "lars", "--trust-coefficient", "1"],
    "adafactor": ["--optimizer", "adafactor"],
}
IN_EVERY_MODE = ["two threads", "small device, small host, drive"]
HOST_MEM = {"adafactor": "18MiB"}  # of its little state nothing would be left to the drive in 24 MiB


def hash_of(folder, arguments):
    arguments = [argument.format(folder=folder) for argument in arguments]
    result = train(fresh(folder), *RUN, *arguments)
    assert result["updates"] == 8 and result["exact"] is ("--state" not in arguments), result
    return result


def main():
    hashes = {}
    with temporary_folder() as top:
        folder = pathlib.Path(top) / "case"
        for mode, mode_arguments in MODES.items():
            for name, arguments in PLACEMENTS.items():
                if mode != "clip 1" and name not in IN_EVERY_MODE:
                    continue
                arguments = [HOST_MEM.get(mode, each) if each == "24MiB" else each for each in arguments]
                result = hash_of(folder, [*arguments, *mode_arguments])
                hashes.setdefault(mode, {})[name] = result["weights_xxh3"]
                print(f"{mode:24} {name:34} {result['weights_xxh3']} {result['wall_s']:.1f} s, "
                      f"drive {result['bytes']['nvme_read'] + result['bytes']['nvme_written']} bytes", flush=True)
                if "--nvme" in arguments:
                    assert result["bytes"]["nvme_read"] > 5 << 20, "this placement was meant to use the drive"
    faults = [mode for mode, found in hashes.items() if len(set(found.values())) != 1]
    assert not faults, f"more than one set of weights in: {faults}"
    # Clipping at another norm is another run; waiting or not for a norm that clips nothing is the same one.
    assert hashes["no clip"] == hashes["no clip, nothing waits"], hashes
    assert len({next(iter(found.values())) for found in hashes.values()}) >= 5, "clipping, a format or an optimizer changed nothing"


main()
