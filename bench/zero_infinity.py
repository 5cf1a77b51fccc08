#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Whole training steps against DeepSpeed ZeRO-3 with its optimizer state on a drive, and against plain torch.

    bench/zero_infinity.py --peers DIR --peers-python PYTHON

Each round runs, one after the other: `spillway train` with its state on the drive (weights and gradients in memory), the
same all in memory, DeepSpeed, plain torch; a GPT-2 of 124 M parameters, as many tokens a step and threads, an fp32 master,
clipping at 1. --peers is a folder with zero_infinity.py and model.py, PYTHON one that has DeepSpeed. JSON lines; the last
one has the medians of each round's own ratios and says what is asked of them. Exposed is what a step takes longer with its
state on the drive than all in memory, against DeepSpeed's optimizer step.
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
ASKED = {"whole_step": ("<=", 0.65), "exposed": ("<=", 0.25), "torch_passes_to_ours": (">=", 1.0),
         "peak_rss": ("<=", 0.35), "nvme_bytes_per_parameter": ("<=", 20.5)}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="12x768x12", help="LAYERSxHIDDENxHEADS")
parser.add_argument("--vocab", type=int, default=50257)
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--steps", type=int, default=6, help="a run; the first two do not count")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--host-mem", default="1700MiB", help="of the run on the drive")
parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"], help="the peers' weights and gradients")
parser.add_argument("--program", default=ROOT / "build" / "release" / "spillway")
parser.add_argument("--dir", default=os.getcwd(), help="folder on the drive to use")
parser.add_argument("--peers", type=pathlib.Path, required=True)
parser.add_argument("--peers-python", type=pathlib.Path, required=True)
options = parser.parse_args()
layers, hidden, heads = options.model.split("x")


def last_json_line(*command, **more_environment):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ | more_environment)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(top, *where):
    """`spillway train`: seconds of a step, peak memory, bytes on the drive."""
    folder = pathlib.Path(top) / "run"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "drive").mkdir(parents=True)
    flags = {"model": f"gpt2:{options.model}", "vocab": options.vocab, "context": options.seq, "data": CORPUS,
             "batch": options.batch, "seq": options.seq, "steps": options.steps, "threads": options.threads, "clip": 1,
             "eval-sequences": 1, "probe": "off", "tune": "off", "commit-every": "10h", "out": folder / "out",
             "json": folder / "result.json"}
    command = [options.program, "train", *(text for name, value in flags.items() for text in (f"--{name}", value)),
               *(flag.format(drive=folder / "drive") for flag in where)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"spillway train ended with {done.returncode}: {done.stderr[-2000:]}")
    result = json.loads((folder / "result.json").read_text())
    steps = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    # What commits write is not among those written; what a new run writes before its first step is: weight, residue, m and
    # v of every parameter.
    new_run_bytes = 12 * result["model"]["parameters"]
    bytes_moved = result["bytes"]["nvme_read"] + result["bytes"]["nvme_written"] - new_run_bytes
    return {"step_s": statistics.median(step["step_s"] for step in steps[2:]),
            "rss_gib": result["peak"]["rss_bytes"] / 2**30, "loss": result["loss"]["last"],
            "bytes_per_parameter": bytes_moved / result["steps"] / result["model"]["parameters"]}


def peer(top, *how):
    flags = {"layers": layers, "hidden": hidden, "heads": heads, "seq": options.seq, "batch": options.batch,
             "vocab": options.vocab, "steps": options.steps, "dtype": options.dtype, "text": CORPUS,
             "threads": options.threads, "clip": 1, "dir": pathlib.Path(top) / "peer"}
    found = last_json_line(options.peers_python, options.peers / "zero_infinity.py", *how,
                           *(text for name, value in flags.items() for text in (f"--{name}", value)), DS_ACCELERATOR="cpu",
                           PATH=f"{options.peers_python.parent}{os.pathsep}{os.environ['PATH']}")
    return {"step_s": found["total_s"], "passes_s": found["forward_s"] + found["backward_s"],
            "optimizer_s": found["step_s"], "rss_gib": found["peak_rss_gib"], "loss": found["final_loss"],
            "bytes_per_parameter": found["read_B_per_param"] + found["write_B_per_param"]}


def main():
    rounds = []
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="spillway-bench-") as top:
        for _ in range(options.rounds):
            drive = ours(top, "--nvme", "{drive}", "--host-mem", options.host_mem)
            memory = ours(top)
            deepspeed = peer(top, "--offload", "nvme")
            torch = peer(top, "--plain-torch", *(["--master"] if options.dtype == "bf16" else []))
            ratios = {"whole_step": drive["step_s"] / deepspeed["step_s"],
                      "exposed": (drive["step_s"] - memory["step_s"]) / deepspeed["optimizer_s"],
                      "torch_passes_to_ours": torch["passes_s"] / memory["step_s"],
                      "peak_rss": drive["rss_gib"] / deepspeed["rss_gib"],
                      "nvme_bytes_per_parameter": drive["bytes_per_parameter"]}
            rounds.append(ratios)
            print(json.dumps({"ours": drive, "ours_in_memory": memory, "deepspeed": deepspeed, "torch": torch,
                              "ratios": ratios}), flush=True)
    medians = {name: statistics.median(each[name] for each in rounds) for name in ASKED}
    print(json.dumps({"rounds": len(rounds), "load1": os.getloadavg()[0],
                      "figures": {name: {"median": round(value, 3), "asked": " ".join(map(str, ASKED[name])),
                                         "all": [round(each[name], 3) for each in rounds]}
                                  for name, value in medians.items()}}))


main()
