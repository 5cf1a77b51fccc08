# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""However scripts/gpu_check.sh ends, its JSON and its last line say why."""
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import ROOT, program, skip, temporary_folder  # noqa: E402


def ended(folder, code, *arguments, **environment):
    """Runs the script; returns its JSON and its last line."""
    out = folder / "report" / "check.json"
    done = subprocess.run([ROOT / "scripts" / "gpu_check.sh", *arguments, "--work", folder, "--out", out],
                          env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    report = json.loads(out.read_text())
    assert report["passed"] is False, report
    return report, done.stdout.splitlines()[-1]


def main():
    if "SPILLWAY_CUDA_STANDIN" not in os.environ:
        skip("the look-alike of the CUDA driver was not built")
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        report, line = ended(folder, 1, "--built", SPILLWAY_BUILD=str(folder / "nothing"))
        assert "nothing/spillway is not there" in report["ended_early"] and report["ended_early"] in line, (report, line)

        broken = folder / "broken"
        broken.mkdir()
        for each in ("spillway", "cuda_tests", "cuda_trainer_tests"):
            (broken / each).symlink_to("/bin/false")
        report, line = ended(folder, 1, "--built", SPILLWAY_BUILD=str(broken))
        assert report["parts"]["info"]["exit_code"] == 1 and "info" in line, (report, line)

        build = str(pathlib.Path(program()).parent)
        report, line = ended(folder, 77, "--rehearse", os.environ["SPILLWAY_CUDA_STANDIN"], SPILLWAY_BUILD=build,
                             SPILLWAY_STANDIN_CAPABILITY="7")
        assert report["machine"]["gpus"][0]["name"] == "Stand-in", report
        assert "nothing to check" in line and report["ended_early"] in line, (report, line)


main()
