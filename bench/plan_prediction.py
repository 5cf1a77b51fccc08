#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What `spillway plan` foretells against what `spillway train` then does, in JSON lines.

    bench/plan_prediction.py                      every plan of the list, three times
    bench/plan_prediction.py --only lamb lars     some of them
    bench/plan_prediction.py --list

Each time the machine is measured anew (a profile of its own), the run is planned, and it is run at once, so that both
meet the same machine: a step's seconds are the median of its steps but the first two, memory is the kernel's peak of
the resident set. Ratios are predicted / measured. The last line says how many plans are within 15 % (seconds) and 10 %
(memory), by the median of each plan's ratios. Runs commit at their end only.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORPUS = ROOT / "engine" / "data" / "kjv.txt"

SMALL = ["--model", "gpt2:6x384x6", "--context", "256"]  # 10.8 M parameters
MEDIUM = ["--model", "gpt2:8x512x8", "--context", "256"]  # 25.5 M
LARGE = ["--model", "gpt2:12x768x12", "--context", "256"]  # 85.4 M
DRIVE = ["--nvme", "{drive}"]
PLANS = {
    "memory, many tokens": [*SMALL, "--batch", "8", "--seq", "128"],
    "memory, few tokens": [*LARGE, "--batch", "1", "--seq", "64"],
    "memory, bf16 state": [*MEDIUM, "--batch", "1", "--seq", "128", "--state", "bf16"],
    "memory, lamb": [*MEDIUM, "--batch", "1", "--seq", "128", "--optimizer", "lamb"],
    "drive, few tokens": [*MEDIUM, *DRIVE, "--host-mem", "400MiB", "--batch", "1", "--seq", "128"],
    "drive, many tokens": [*MEDIUM, *DRIVE, "--host-mem", "460MiB", "--batch", "8", "--seq", "256"],
    "drive, large": [*LARGE, *DRIVE, "--host-mem", "1010MiB", "--batch", "2", "--seq", "256"],
    "drive, int8 state": [*LARGE, *DRIVE, "--host-mem", "800MiB", "--batch", "1", "--seq", "128", "--state", "int8"],
    "drive, nothing waits": [*MEDIUM, *DRIVE, "--host-mem", "256MiB", "--batch", "2", "--seq", "128", "--clip", "off",
                             "--nonfinite", "stop"],
    "drive, gradients too": [*MEDIUM, *DRIVE, "--host-mem", "170MiB", "--batch", "2", "--seq", "128"],
    "drive, lars": [*LARGE, *DRIVE, "--host-mem", "800MiB", "--batch", "1", "--seq", "128", "--optimizer", "lars"],
    "device, drive": [*MEDIUM, *DRIVE, "--device", "sim:192MiB@4GB/s", "--host-mem", "200MiB", "--batch", "4", "--seq",
                      "128"],
}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--only", nargs="+", choices=list(PLANS), metavar="NAME", help="of the list")
parser.add_argument("--list", action="store_true", help="the names of the plans")
parser.add_argument("--times", type=int, default=3, help="each plan")
parser.add_argument("--seconds", type=float, default=6, help="that a run takes, about")
parser.add_argument("--program", default=ROOT / "build" / "release" / "spillway")
parser.add_argument("--dir", default=os.getcwd(), help="folder on the drive to use")
parser.add_argument("--profile", action="store_true", help="keep one profile: the machine is measured once")


def spillway(options, verb, *arguments):
    done = subprocess.run([options.program, verb, *map(str, arguments), "--json", "-"], check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout)


def once(options, flags, folder, profile):
    """One prediction and the run after it."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "drive").mkdir(parents=True)
    flags = [flag.format(drive=folder / "drive") for flag in flags]
    plan = spillway(options, "plan", *flags, "--profile", profile or folder / "profile.json")
    told = plan["prediction"]
    steps = min(max(int(options.seconds / told["step_s"]), 5), 60)
    run = spillway(options, "train", *flags, "--data", CORPUS, "--steps", steps, "--probe", "off", "--eval-sequences",
                   "0", "--commit-every", "10h", "--out", folder / "run", "--profile", folder / "none.json")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    step_s = statistics.median(line["step_s"] for line in lines[2:])
    host = plan["tiers"]["host"]
    planned = host["planned_bytes"] + host["overhead_bytes"]
    if plan["device"].startswith("sim"):
        planned += plan["tiers"]["device"]["planned_bytes"]  # its memory is this machine's too
    done_steps = run["session_steps"]
    return {"predicted_s": told["step_s"], "measured_s": step_s, "ratio": told["step_s"] / step_s,
            "bound_s": told["bound_s"], "bound_by": told["bound_by"],
            "predicted_bytes": planned, "rss_bytes": run["peak"]["rss_bytes"],
            "memory_ratio": planned / run["peak"]["rss_bytes"],
            "told": {"phase_s": told["phase_s"], "work_s": told["work_s"], "lane_s": told["lane_s"],
                     "sharing": told["sharing"], "rates": told["rates"]},
            "took": {"phase_s": {name: s / done_steps for name, s in run["phase_s"].items()},
                     "stall_s": {name: s / done_steps for name, s in run["stall_s"].items()}, "steps": steps}}


def main():
    options = parser.parse_args()
    if options.list:
        print("\n".join(PLANS))
        return
    good = {"seconds": [], "memory": []}
    names = options.only or list(PLANS)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="spillway-bench-") as top:
        for name in names:
            profile = pathlib.Path(top) / "profile.json" if options.profile else None
            times = [once(options, PLANS[name], pathlib.Path(top) / "case", profile) for _ in range(options.times)]
            ratio = statistics.median(each["ratio"] for each in times)
            memory = statistics.median(each["memory_ratio"] for each in times)
            good["seconds"] += [name] if abs(ratio - 1) <= 0.15 else []
            good["memory"] += [name] if abs(memory - 1) <= 0.10 else []
            print(json.dumps({"plan": name, "ratio": round(ratio, 3), "memory_ratio": round(memory, 3),
                              "ratios": [round(each["ratio"], 3) for each in times],
                              "predicted_s": round(statistics.median(each["predicted_s"] for each in times), 4),
                              "measured_s": round(statistics.median(each["measured_s"] for each in times), 4),
                              "last": times[-1]}), flush=True)
    print(json.dumps({"plans": len(names), "times": options.times, "seconds_within_15_percent": len(good["seconds"]),
                      "memory_within_10_percent": len(good["memory"]),
                      "missed": sorted(set(names) - set(good["seconds"]) | set(names) - set(good["memory"])),
                      "load1": os.getloadavg()[0]}))


main()
