#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""integrations/c/example.c trains, commits, is reopened and ends with the uninterrupted run's bits.

    c_example_test.py EXAMPLE
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def losses(output):
    return [(int(step), float(loss)) for step, loss in re.findall(r"step +(\d+) +loss ([\d.]+)", output)]


def check_export(path):
    """The header of the safetensors file, read by its definition: length, JSON, data."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    assert header["weight"]["shape"] == [1024, 1024] and header["weight"]["dtype"] == "F32", header
    assert header["bias"]["shape"] == [1024], header
    assert len(data) == 8 + length + 4 * (1024 * 1024 + 1024), len(data)


def main(example):
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix="spillway-test-") as name:
        folder = pathlib.Path(name)
        done = subprocess.run([example, folder], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        found = losses(done.stdout)
        assert [step for step, _ in found] == [*range(1, 13), *range(1, 6), *range(6, 13)], found
        assert found[:12] == found[12:], "the resumed run's losses differ"
        assert found[11][1] < 0.65 * found[0][1], f"it did not learn: {found[0]} ... {found[11]}"
        assert "resumed at step 5" in done.stdout and "bit-equal" in done.stdout, done.stdout
        on_drive, state = map(int, re.search(r"state on the drive: (\d+) of (\d+)", done.stdout).groups())
        assert on_drive > state / 2, done.stdout
        assert (folder / "run" / "spillway.state" / "manifest.json").is_file()
        check_export(folder / "model.safetensors")
        again = subprocess.run([example, folder / "missing"], capture_output=True, text=True, timeout=120)
        assert again.returncode == 1 and "missing" in again.stderr, (again.returncode, again.stderr)
    print(done.stdout)


main(sys.argv[1])
