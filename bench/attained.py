#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""How near steps come to their physical bound, bound / measured, in JSON lines: optimizer steps alone with their state on
the drive and in memory, whole training steps that the drive or the processor bounds.

    bench/attained.py                          every case, three rounds
    bench/attained.py --only "step, drive"     one of them

The cases take turns, round by round, and each takes its rates from its own run; the last line has the medians beside what is
asked. A training run that is to be bound by the drive and turns out not to be (a faster drive, a slower processor) says so
in `bound_by`.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "engine" / "data" / "kjv.txt"

STEP = ["bench", "step", "--elements", "67108864", "--steps", "9", "--nvme", "{drive}"]
TRAIN = ["train", "--model", "gpt2:12x768x12", "--context", "256", "--data", str(CORPUS), "--nvme", "{drive}", "--out",
         "{out}", "--eval-sequences", "0", "--commit-every", "10h", "--profile", "{profile}", "--tune", "off"]
# What is asked, and the command. Under clipping backward leaves the drive to itself, since the norm is not known yet: what
# backward takes is lost to a step that the drive bounds, so that one where it hardly does ("barely") is far from its bound.
CASES = {
    "step, drive": (0.92, [*STEP, "--host-mem", "96MiB"]),
    "step, memory": (0.92, [*STEP, "--host-mem", "1GiB"]),
    "training, by the drive": (0.85, [*TRAIN, "--host-mem", "300MiB", "--batch", "1", "--seq", "32", "--steps", "14"]),
    "training, by the drive, barely": (None, [*TRAIN, "--host-mem", "1010MiB", "--batch", "1", "--seq", "32", "--steps",
                                              "14"]),
    "training, by the drive, nothing waits": (0.85, [*TRAIN, "--host-mem", "300MiB", "--batch", "1", "--seq", "64",
                                                     "--steps", "14", "--clip", "off", "--nonfinite", "stop"]),
    "training, by the processor": (0.93, [*TRAIN, "--host-mem", "1200MiB", "--batch", "8", "--seq", "256", "--steps", "6"]),
}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="CASE", help="of the list")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--program", default=ROOT / "build" / "release" / "spillway")
parser.add_argument("--dir", default=os.getcwd(), help="folder on the drive to measure")
options = parser.parse_args()


def once(top, command):
    folder = pathlib.Path(top) / "run"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "drive").mkdir(parents=True)
    flags = [flag.format(drive=folder / "drive", out=folder / "out", profile=folder / "profile.json") for flag in command]
    done = subprocess.run([options.program, *flags, "--json", "-"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"spillway {' '.join(flags)}: {done.stderr[-2000:]}")
    result = json.loads(done.stdout)
    if command[0] == "bench":
        return {"attained": result["attained"], "step_s": result["measured_s"], "bound_s": result["bound_s"]}
    # The first two steps meet cold memory, and the last one the final commit.
    steps = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    step_s = statistics.median(step["step_s"] for step in steps[2:-1])
    return {"attained": result["bound_s"] / step_s, "step_s": step_s, "bound_s": result["bound_s"],
            "bound_by": result["bound_by"]}


def main():
    names = options.only or list(CASES)
    found = {name: [] for name in names}
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="spillway-bench-") as top:
        for _ in range(options.rounds):
            for name in names:
                found[name].append(once(top, CASES[name][1]))
                print(json.dumps({"case": name, **found[name][-1]}), flush=True)
    print(json.dumps({"rounds": options.rounds, "load1": os.getloadavg()[0],
                      "attained": {name: {"median": round(statistics.median(each["attained"] for each in all_), 3),
                                          "asked": CASES[name][0]} for name, all_ in found.items()}}))


main()
