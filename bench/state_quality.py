#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What lossy optimizer state costs in loss: the quickstart's model trained with exact, bf16 and int8 state, seed by
seed, in JSON lines; the exit status says whether each ends within --within of the exact loss.

    bench/state_quality.py                                    1,000 steps, three seeds: hours
    bench/state_quality.py --model 2x128x4 --steps 200        a few minutes

The loss is that of the held-out text at the run's end.
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

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="6x384x6", help="LAYERSxHIDDENxHEADS")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--optimizer", default="adamw")
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--states", default="bf16,int8")
parser.add_argument("--within", type=float, default=0.005, help="part of the exact loss that a seed's may differ by")
parser.add_argument("--program", default=ROOT / "build" / "release" / "spillway")
parser.add_argument("--dir", default=os.getcwd(), help="where the runs' folders go, and vanish")
options = parser.parse_args()


def final_loss(folder, state, seed):
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(
        [options.program, "train", "--model", f"gpt2:{options.model}", "--context", str(options.seq), "--data", CORPUS,
         "--batch", str(options.batch), "--seq", str(options.seq), "--steps", str(options.steps),
         "--optimizer", options.optimizer, "--lr", str(options.lr), "--warmup", "20", "--schedule", "linear",
         "--weight-decay", "0.1", "--state", state, "--seed", str(seed), "--probe", "off", "--out", folder,
         "--commit-every", str(options.steps), "--json", "-"], check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    assert result["exact"] is (state == "fp32")
    return result["loss"]["eval"]


def main():
    ratios = {state: [] for state in options.states.split(",")}
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="spillway-quality-") as top:
        for seed in range(1, options.seeds + 1):
            exact = final_loss(pathlib.Path(top) / "run", "fp32", seed)
            for state, found in ratios.items():
                loss = final_loss(pathlib.Path(top) / "run", state, seed)
                found.append(loss / exact)
                print(json.dumps({"seed": seed, "state": state, "exact_loss": exact, "loss": loss,
                                  "ratio": loss / exact}), flush=True)
    for state, found in ratios.items():
        print(json.dumps({"state": state, "ratio_median": statistics.median(found), "ratios": found}), flush=True)
    return 0 if all(abs(ratio - 1) <= options.within for found in ratios.values() for ratio in found) else 1


sys.exit(main())
