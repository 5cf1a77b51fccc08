# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What the end-to-end tests share: running the program, and exit code 77 for what a machine lacks."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIP = 77
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "engine" / "data" / "kjv.txt"


def program():
    return os.environ.get("SPILLWAY", str(ROOT / "build" / "release" / "spillway"))


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(SKIP)


def temporary_folder():
    """On the file system of the current folder (a disk, unlike a tmpfs /tmp); removed with the object."""
    return tempfile.TemporaryDirectory(dir=os.getcwd(), prefix="spillway-test-")


def run(arguments, expect=0, **options):
    """Runs the program; returns (exit code, stdout, stderr). `expect` is a code, or None for any."""
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True, **options)
    if expect is not None and done.returncode != expect:
        raise AssertionError(
            f"exit {done.returncode}, expected {expect}: spillway {' '.join(map(str, arguments))}\n{done.stderr}")
    return done.returncode, done.stdout, done.stderr


def train(folder, *arguments, expect=0, **options):
    """`spillway train` with its results as a dictionary. A run's folders are made anew below `folder`."""
    folder = pathlib.Path(folder)
    (folder / "drive").mkdir(parents=True, exist_ok=True)
    _, out, _ = run(["train", "--data", CORPUS, "--out", folder / "run", "--json", "-", *arguments], expect, **options)
    return json.loads(out) if out else None


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def look_alike(folder):
    """An environment in which the program finds the look-alike as the machine's CUDA driver, and where it writes what
    it saw."""
    libraries = pathlib.Path(folder) / "lib"
    libraries.mkdir()
    (libraries / "libcuda.so.1").symlink_to(os.environ["SPILLWAY_CUDA_STANDIN"])
    report = pathlib.Path(folder) / "report"
    return {**os.environ, "LD_LIBRARY_PATH": str(libraries), "SPILLWAY_STANDIN_REPORT": str(report)}, report


def seen(report):
    """What the look-alike counted; it saw no breach of the driver's rules."""
    lines = [line.split(" ", 1) for line in report.read_text().splitlines()]
    violations = [words for name, words in lines if name == "violation"]
    assert not violations, violations
    return {name: int(number) for name, number in lines}
