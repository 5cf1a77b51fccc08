# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What must be refused while and after a run: a second engine, another model, a full disk; and a clean stop."""
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import CORPUS, program, run, temporary_folder, train  # noqa: E402

MODEL = ["--model", "gpt2:2x128x4", "--context", "64"]
RUN = [*MODEL, "--batch", "2", "--seq", "64", "--lr", "1e-3", "--probe", "off", "--eval-sequences", "2"]


def wait_for_steps(folder, count):
    metrics = folder / "run" / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and len(metrics.read_text().splitlines()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{metrics} never had {count} lines")


def check_second_engine(folder):
    """Every verb that needs the run whole refuses it while it is training, and a signal ends it cleanly."""
    folder.mkdir()
    command = [program(), "train", "--data", CORPUS, "--out", folder / "run", *RUN, "--steps", "100000"]
    first = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for_steps(folder, 3)
        for verb in (["train", "--out", folder / "run", "--resume"], ["inspect", folder / "run"],
                     ["generate", folder / "run", "--tokens", "1"], ["export", folder / "run", folder / "exported"]):
            code, _, err = run(verb, expect=None)
            assert code == 2 and str(first.pid) in err and "run" in err, (verb[0], code, err)
        assert not (folder / "exported").exists()
    finally:
        first.send_signal(signal.SIGTERM)
        first.wait(60)
    assert first.returncode == 130, first.returncode
    assert run(["inspect", folder / "run"])[0] == 0


def check_other_model(folder):
    train(folder, *RUN, "--steps", "2")
    before = sorted(path.stat().st_mtime_ns for path in (folder / "run" / "spillway.state").glob("record.*"))
    _, _, err = run(["train", "--out", folder / "run", "--resume", "--model", "gpt2:3x128x4", "--steps", "4"], expect=2)
    assert "--model" in err and "gpt2:3x128x4" in err and "gpt2:2x128x4" in err, err
    _, _, err = run(["train", "--out", folder / "run", "--resume", "--data", __file__, "--steps", "4"], expect=2)
    assert "--data" in err, err
    _, _, err = run(["train", "--out", folder / "run", "--resume", "--state", "int8", "--steps", "4"], expect=2)
    assert "--state int8" in err and "fp32" in err, err
    after = sorted(path.stat().st_mtime_ns for path in (folder / "run" / "spillway.state").glob("record.*"))
    assert before == after, "a refused resume wrote to the run"


def check_full_disk(folder):
    """A file system of 64 MiB, by a loop device: refused at the start, and full from outside in mid-run."""
    folder.mkdir()
    image, mount = folder / "disk.img", folder / "disk"
    mount.mkdir()
    with open(image, "wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True)
    if made.returncode or subprocess.run(["mount", "-o", "loop", image, mount], capture_output=True).returncode:
        print("full disk: not checked, no loop device can be mounted here")
        return
    try:
        large = ["--model", "gpt2:6x384x6", "--context", "64", "--seq", "64", "--steps", "2", "--probe", "off"]
        _, _, err = run(["train", "--data", CORPUS, "--out", folder / "large", "--nvme", mount, *large], expect=2)
        assert "bytes are needed" in err and "available" in err and not (folder / "large").exists(), err
        # Room for the extents is reserved at the start, so a disk filled later takes nothing from the run.
        (folder / "drive").mkdir()
        result = train(folder / "reserved", *RUN, "--steps", "2", "--nvme", mount)
        subprocess.run(["dd", "if=/dev/zero", f"of={mount}/filler", "bs=1M"], capture_output=True)
        longer = run(["train", "--out", folder / "reserved" / "run", "--resume", "--steps", "4", "--json", "-"])
        assert result["steps"] == 2 and '"steps": 4' in longer[1]
        # A new run on the full disk is refused and leaves nothing behind.
        _, _, err = run(["train", "--data", CORPUS, "--out", folder / "late", "--nvme", mount, *RUN, "--steps", "1"], expect=2)
        assert "bytes are needed" in err and not (folder / "late").exists(), err
    finally:
        subprocess.run(["umount", mount], check=True)


def check_budgets(folder):
    for flag, value in (("--host-mem", "2MiB"), ("--device", "sim:100KiB")):
        _, _, err = run(["train", "--data", CORPUS, "--out", folder, *RUN, "--steps", "1", flag, value], expect=2)
        assert "bytes are needed" in err and not os.path.exists(folder), err


with temporary_folder() as top:
    top = pathlib.Path(top)
    check_second_engine(top / "second")
    check_other_model(top / "other")
    check_full_disk(top / "full")
    check_budgets(top / "budgets")
    print("refusals: all as they should be")
