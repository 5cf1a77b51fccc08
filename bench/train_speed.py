#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Training speed as ratios from interleaved pairs, in JSON lines.

    bench/train_speed.py torch --model 6x384x6       all in memory, against plain torch (needs .venv with torch)
    bench/train_speed.py drive --model 12x768x12     state on the drive, against all in memory
    bench/train_speed.py trace --model 6x384x6       state on the drive with --trace, against without it

Each pair runs one after the other, so that a machine whose speed drifts does so for both; the median of
the ratios counts. `drive` and `trace` take steps of 512 tokens and a host budget that holds weights and
gradients, but no moments.
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
parser.add_argument("against", choices=["torch", "drive", "trace"])
parser.add_argument("--model", default="6x384x6", help="LAYERSxHIDDENxHEADS")
parser.add_argument("--batch", type=int, help="sequences a step (default: 8 with torch, else 2)")
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--steps", type=int, default=8, help="steps a run; the first two do not count")
parser.add_argument("--pairs", type=int, default=5)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--host-mem", help="with drive and trace: the budget (default: what weights and gradients need)")
parser.add_argument("--program", default=ROOT / "build" / "release" / "spillway")
parser.add_argument("--python", default=ROOT / ".venv" / "bin" / "python")
parser.add_argument("--dir", default=os.getcwd(), help="folder on the drive to measure")
options = parser.parse_args()
options.batch = options.batch or (8 if options.against == "torch" else 2)
layers, hidden, heads = (int(n) for n in options.model.split("x"))


def spillway(folder, *extra):
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "drive").mkdir(parents=True)
    subprocess.run(
        [options.program, "train", "--model", f"gpt2:{options.model}", "--context", str(options.seq), "--data", CORPUS,
         "--batch", str(options.batch), "--seq", str(options.seq), "--steps", str(options.steps),
         "--threads", str(options.threads), "--eval-sequences", "1", "--probe", "off", "--out", folder / "run",
         "--json", folder / "result.json", *extra], check=True, capture_output=True)
    steps = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    return statistics.median(step["tokens_per_s"] for step in steps[2:]), result


def torch(_):
    flags = {"layers": layers, "hidden": hidden, "heads": heads, "batch": options.batch, "seq": options.seq,
             "steps": options.steps, "threads": options.threads, "data": CORPUS}
    arguments = [text for name, value in flags.items() for text in (f"--{name}", str(value))]
    done = subprocess.run([options.python, ROOT / "bench" / "torch_gpt2.py", *arguments],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["tokens_per_s"], {}


def budget_for_weights_and_gradients():
    parameters = 12 * layers * hidden**2 + (256 + options.seq) * hidden
    activations = options.batch * options.seq * hidden * layers * 48
    return f"{(parameters * 8 + activations + 12 * hidden**2 * 16 + (180 << 20)) >> 20}MiB"


def main():
    ratios = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="spillway-bench-") as top:
        folder = pathlib.Path(top)
        for pair in range(options.pairs):
            if options.against == "torch":
                ours, result = spillway(folder / "a")
                other, _ = torch(folder)
            elif options.against == "trace":
                budget = options.host_mem or budget_for_weights_and_gradients()
                on_drive = ["--nvme", folder / "a" / "drive", "--host-mem", budget]
                # In turn first.
                if pair % 2:
                    other, _ = spillway(folder / "a", *on_drive)
                ours, result = spillway(folder / "a", *on_drive, "--trace", folder / "trace.json")
                if pair % 2 == 0:
                    other, _ = spillway(folder / "a", *on_drive)
            else:
                budget = options.host_mem or budget_for_weights_and_gradients()
                ours, result = spillway(folder / "a", "--nvme", folder / "a" / "drive", "--host-mem", budget)
                other, _ = spillway(folder / "a")
                if result["plan"]["nvme_written_bytes_per_step"] == 0:
                    sys.exit(f"nothing is on the drive with --host-mem {budget}; give less")
            ratios.append(ours / other)
            moved = result["plan"]["nvme_read_bytes_per_step"] + result["plan"]["nvme_written_bytes_per_step"]
            print(json.dumps({"pair": pair, "tokens_per_s": round(ours, 1), "yardstick_tokens_per_s": round(other, 1),
                              "ratio": round(ours / other, 4),
                              "nvme_bytes_per_parameter": round(moved / result["model"]["parameters"], 2),
                              "stall_s": result["stall_s"]}), flush=True)
    print(json.dumps({"against": options.against, "model": options.model, "tokens_per_step": options.batch * options.seq,
                      "threads": options.threads, "pairs": options.pairs,
                      "median_ratio": round(statistics.median(ratios), 4),
                      "ratios": [round(ratio, 4) for ratio in sorted(ratios)], "load1": os.getloadavg()[0]}))


main()
