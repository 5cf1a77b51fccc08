# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""P2: a run killed at random moments and resumed each time ends with the weights of an uninterrupted one.

    kill_test.py [KILLS [DRIVES [STATE]]]    default 20, 1 and fp32; SPILLWAY_TEST_SEED chooses the moments
"""
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import CORPUS, program, temporary_folder, train  # noqa: E402

RUN = ["--model", "gpt2:4x192x4", "--context", "64", "--batch", "2", "--seq", "64", "--lr", "1e-3",
       "--probe", "off", "--eval-sequences", "2", "--device", "sim:16MiB", "--host-mem", "24MiB",
       "--chunk-size", "64KiB"]
LEAST_SECONDS_PER_KILL = 0.5
PACE_STEPS = 8
# So many steps are logged only once a commit, of every second one, is there.
STEPS_WITH_COMMIT = 5


def resumed_at(folder):
    metrics = folder / "run" / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def drives_in(folder, count):
    """What --nvme takes: as many folders as drives, made."""
    drives = [folder / f"drive{number}" for number in range(count)]
    for drive in drives:
        drive.mkdir(parents=True, exist_ok=True)
    return ",".join(map(str, drives))


def main():
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    drives = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    run = [*RUN, "--state", sys.argv[3] if len(sys.argv) > 3 else "fp32"]
    seed = int(os.environ.get("SPILLWAY_TEST_SEED", time.time_ns() % 1_000_000))
    moments = random.Random(seed)
    print(f"seed {seed}, {kills} kills, {drives} drives", flush=True)
    with temporary_folder() as top:
        whole, killed = pathlib.Path(top) / "whole", pathlib.Path(top) / "killed"
        began = time.monotonic()
        pace = train(whole / "pace", *run, "--nvme", drives_in(whole / "pace", 1), "--steps", str(PACE_STEPS))
        # Long enough for some commits, however slow the machine is today.
        seconds_per_kill = max(LEAST_SECONDS_PER_KILL, time.monotonic() - began)
        # Long enough that every kill lands before the end, even if nothing were ever lost.
        steps = int(kills * seconds_per_kill / (pace["wall_s"] / PACE_STEPS)) + 50
        arguments = [*run, "--steps", str(steps)]
        expected = train(whole / "run", *arguments, "--nvme", drives_in(whole / "run", 1))["weights_xxh3"]

        nvme = drives_in(killed, drives)
        command = [program(), "train", "--data", str(CORPUS), "--out", str(killed / "run"), *arguments,
                   "--nvme", nvme, "--commit-every", "2", "--resume"]
        for number in range(kills):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(moments.uniform(0.02, seconds_per_kill))
            if number == kills - 1:  # on a machine that has become slower since, no other may have met a commit
                while process.poll() is None and resumed_at(killed) < STEPS_WITH_COMMIT:
                    time.sleep(0.01)
            assert process.poll() is None, f"run {number} ended with {process.returncode} before its kill"
            process.send_signal(signal.SIGKILL)
            process.wait()
            print(f"kill {number + 1}: {resumed_at(killed)} of {steps} steps were logged", flush=True)
        result = train(killed, *arguments, "--nvme", nvme, "--commit-every", "2", "--resume")
        assert result["resumed_from_step"] and result["resumed_from_step"] < steps, result["resumed_from_step"]
        assert result["weights_xxh3"] == expected, (result["weights_xxh3"], expected)
        print(f"{kills} kills, {steps} steps, one hash: {expected}")


main()
