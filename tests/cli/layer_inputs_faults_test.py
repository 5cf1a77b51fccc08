# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""P2 of a run whose layers' inputs wait on the drive: killed in mid-step, bits of theirs turned, the disk full. Its last commit
goes on to the weights of an uninterrupted run, and nothing of theirs is left. LAMB and LARS: their updates have two passes.

    layer_inputs_faults_test.py    SPILLWAY_TEST_SEED chooses the moments
"""
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import CORPUS, program, run, temporary_folder, train  # noqa: E402

RUN = ["--model", "gpt2:12x64x2", "--context", "128", "--batch", "8", "--micro-batches", "2", "--recompute", "full",
       "--probe", "off", "--eval-sequences", "0", "--threads", "2", "--chunk-size", "64KiB"]
SMALL = ["--host-mem", "19MiB"]
# As long as a fault takes to come; the schedule belongs to the run.
LONG = ["--steps", "100000", "--schedule", "constant", "--commit-every", "2"]
KILLS = 2
OPTIMIZERS = {"lamb": ["--optimizer", "lamb"], "lars": ["--optimizer", "lars", "--trust-coefficient", "1"]}
PATIENCE_S = 100


def start(folder, optimizer):
    (folder / "drive").mkdir(parents=True, exist_ok=True)
    command = ["train", "--data", str(CORPUS), "--out", str(folder / "run"), *RUN, *OPTIMIZERS[optimizer], *SMALL, *LONG,
               "--nvme", str(folder / "drive"), "--resume"]
    return subprocess.Popen([program(), *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def logged(folder):
    metrics = folder / "run" / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def wait_for_steps(process, folder, steps):
    while process.poll() is None and logged(folder) < steps:
        time.sleep(0.01)
    assert process.poll() is None, process.stderr.read()


def files_without_a_name(process, folder):
    """Those on the drive that the process holds open, by paths that open them."""
    found = []
    for descriptor in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith(str(folder / "drive")) and target.endswith(" (deleted)"):
            found.append(descriptor)
    return found


def check_clean(folder):
    names = {path.name for path in (folder / "drive").rglob("*") if path.is_file()}
    assert names == {"extents.0", "lock"}, names


def weights(folder, optimizer, steps):
    """What the run comes to, from where its last commit is; it has to be one."""
    result = train(folder, *RUN, *OPTIMIZERS[optimizer], *SMALL, "--steps", str(steps), "--schedule", "constant",
                   "--nvme", folder / "drive", "--resume")
    assert result["plan"]["layer_inputs"]["nvme"]["layers"] > 0, result["plan"]["layer_inputs"]
    assert result["resumed_from_step"] and result["resumed_from_step"] % 2 == 0, result["resumed_from_step"]
    check_clean(folder)
    return result["weights_xxh3"]


def whole_run(folder, optimizer, steps):
    """Nothing interrupts it, and nothing of it is on a drive."""
    return train(folder, *RUN, *OPTIMIZERS[optimizer], "--steps", str(steps), "--schedule", "constant")["weights_xxh3"]


def killed(top, optimizer, moments):
    folder = top / f"killed {optimizer}"
    for number in range(KILLS):
        before = logged(folder)
        process = start(folder, optimizer)
        wait_for_steps(process, folder, max(before + 1, 3))
        time.sleep(moments.uniform(0, 0.2))
        assert files_without_a_name(process, folder), "the layers' inputs were meant to be on the drive"
        process.kill()
        process.wait()
        check_clean(folder)
        print(f"{optimizer}, kill {number + 1}: {logged(folder)} steps were logged", flush=True)
    steps = logged(folder) + 1
    assert weights(folder, optimizer, steps) == whole_run(top / f"whole {optimizer}", optimizer, steps)


def damaged(top):
    """All of them, again and again: some are read before they are written anew."""
    folder = top / "damaged"
    process = start(folder, "lamb")
    wait_for_steps(process, folder, 3)
    files = files_without_a_name(process, folder)
    assert files, "the layers' inputs were meant to be on the drive"
    began = time.monotonic()
    while process.poll() is None:
        assert time.monotonic() < began + PATIENCE_S, "nothing was found of what was damaged"
        for path in files:
            try:
                with open(path, "r+b", buffering=0) as inputs:
                    for offset in range(100, os.stat(path).st_size, 1 << 16):
                        inputs.seek(offset)
                        inputs.write(b"\xff\x00\xff\x00")
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has ended
    message = process.stderr.read()
    assert process.returncode == 1, (process.returncode, message)
    assert re.search(r"input of layer \d+, micro-batch \d.*checksum.*--resume", message), message
    check_clean(folder)
    run(["inspect", folder / "run"])
    steps = logged(folder) + 1
    assert weights(folder, "lamb", steps) == whole_run(top / "whole of damaged", "lamb", steps)


def full(top):
    """A run that had them in memory is given less of it on a disk that has no room for them: refused before it starts."""
    folder = top / "full"
    mounted = folder / "drive"
    mounted.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", mounted], capture_output=True).returncode != 0:
        print("SKIPPED in part: no tmpfs can be mounted here for a full disk")
        return
    try:
        args = [*RUN, *OPTIMIZERS["lamb"], "--schedule", "constant", "--nvme", mounted]
        train(folder, *args, "--steps", "2")
        with open(mounted / "filler", "wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(mounted).free - (1 << 16))
        _, _, message = run(["train", "--data", CORPUS, "--out", folder / "run", *args, *SMALL, "--steps", "4", "--resume"], expect=2)
        needed, available = map(int, re.search(r"(\d+) bytes are needed at least and (\d+) are available", message).groups())
        assert needed > available and str(mounted) in message, message
        run(["inspect", folder / "run"])
        (mounted / "filler").unlink()
        assert weights(folder, "lamb", 4) == whole_run(top / "whole of full", "lamb", 4)
    finally:
        subprocess.run(["umount", "--lazy", mounted], check=True)


def main():
    seed = int(os.environ.get("SPILLWAY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"seed {seed}", flush=True)
    with temporary_folder() as top:
        top = pathlib.Path(top)
        moments = random.Random(seed)
        for optimizer in OPTIMIZERS:
            killed(top, optimizer, moments)
        damaged(top)
        full(top)
    print("layers' inputs on the drive: whatever became of them, the last commit went on to the same bits")


main()
