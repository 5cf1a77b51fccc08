#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""How large a model trains inside a cap of memory, in one JSON object; the exit status says whether all of it held.

    bench/capacity.py                                                              1.5 G parameters in 2 GiB
    bench/capacity.py --model 32x2816x22 --cap-gib 4 --durable off                 3 G parameters in 4 GiB

The run is planned and then done inside a memory cgroup of --cap-gib (where one can be made; the kernel's peak of the
resident set is held to the cap in any case). It must end, with finite losses and a peak within 10 % of the plan. Then a
model of the same width with --check-layers layers runs twice, in the least memory it can do with and in as much as it
likes: first, last and held-out loss and the hash of the weights must be the same. Needs some 30 bytes of disk a
parameter, with --durable off 16.
"""
import argparse
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "engine" / "data" / "kjv.txt"
sys.path.append(str(ROOT / "tests" / "support"))
from memory_cap import MemoryCap  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="48x1600x25", help="LAYERSxHIDDENxHEADS")
parser.add_argument("--cap-gib", type=float, default=2)
parser.add_argument("--program-mib", type=int, default=150, help="of the cap: what the program itself takes")
parser.add_argument("--durable", choices=["on", "off"], default="on")
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--seq", type=int, default=64)
parser.add_argument("--check-layers", type=int, default=2)
parser.add_argument("--program", default=ROOT / "build" / "release" / "spillway")
parser.add_argument("--dir", default=os.getcwd(), help="folder on the drive to use")
options = parser.parse_args()


def attempt(verb, *arguments, **process):
    return subprocess.run([options.program, verb, *map(str, arguments), "--json", "-"], capture_output=True, text=True,
                          **process)


def spillway(verb, *arguments, **process):
    done = attempt(verb, *arguments, **process)
    if done.returncode != 0:
        sys.exit(f"spillway {verb} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def flags(model, drive, host_bytes):
    return ["--model", f"gpt2:{model}", "--context", options.seq, "--batch", 1, "--seq", options.seq, "--durable",
            options.durable, "--probe", "off", "--lr", "1e-5", "--data", CORPUS, *(["--nvme", drive] if drive else []),
            *(["--host-mem", f"{host_bytes}B"] if host_bytes else [])]


def train(top, model, host_bytes=None, drive=True, **process):
    folder = pathlib.Path(top) / "run"
    (folder / "drive").mkdir(parents=True)
    try:
        return spillway("train", *flags(model, folder / "drive" if drive else None, host_bytes), "--steps",
                        options.steps, "--eval-sequences", 1, "--out", folder / "out", **process)
    finally:
        shutil.rmtree(folder)


def least_host_bytes(model, top):
    """A plan that is refused says what is needed at least for the part that it had come to."""
    host_bytes = 1 << 20
    while (done := attempt("plan", *flags(model, top, host_bytes))).returncode != 0:
        needed = re.search(r"(\d+) bytes are needed at least and (\d+) are available", done.stderr)
        if not needed:
            sys.exit(f"spillway plan: {done.stderr[-2000:]}")
        host_bytes += int(needed.group(1)) - int(needed.group(2))
    return host_bytes


def outcome(result):
    return {"loss": result["loss"], "weights_xxh3": result["weights_xxh3"]}


def main():
    cap_bytes = int(options.cap_gib * (1 << 30))
    host_bytes = cap_bytes - (options.program_mib << 20)
    shallow = f"{options.check_layers}x{options.model.split('x', 1)[1]}"
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="spillway-capacity-") as top:
        plan = spillway("plan", *flags(options.model, top, host_bytes))
        cap = MemoryCap(cap_bytes, top)
        try:
            run = train(top, options.model, host_bytes, preexec_fn=cap.enter)
        finally:
            cap.close()
        least_bytes = least_host_bytes(shallow, top)
        capped, free = train(top, shallow, least_bytes), train(top, shallow, drive=False)
    rss_bytes, planned_bytes = run["peak"]["rss_bytes"], plan["tiers"]["host"]["planned_bytes"]
    losses = [run["loss"][which] for which in ("first", "last", "eval")]
    held = {"losses are finite": all(map(math.isfinite, losses)), "peak is in the cap": rss_bytes <= cap_bytes,
            "peak is within 10 % of the plan": abs(rss_bytes / planned_bytes - 1) <= 0.1,
            "fewer layers train alike in least and in any memory": outcome(capped) == outcome(free)}
    print(json.dumps({
        "model": options.model, "parameters": run["model"]["parameters"], "durable": options.durable,
        "cap_bytes": cap_bytes, "capped_by": "cgroup" if cap.enter else "nothing", "host_bytes": host_bytes,
        "planned_bytes": planned_bytes, "rss_bytes": rss_bytes, "rss_per_planned": rss_bytes / planned_bytes,
        "without_offloading_bytes": plan["bytes_without_offloading"], "placement": plan["placement"],
        "bytes_per_step": plan["bytes_per_step"], "steps": run["steps"], "wall_s": run["wall_s"],
        "phase_s": run["phase_s"], "loss": run["loss"],
        "check": {"model": shallow, "least_bytes": least_bytes, "free_bytes": free["peak"]["host_bytes"],
                  **outcome(capped)},
        "held": held}))
    return 0 if all(held.values()) else 1


sys.exit(main())
