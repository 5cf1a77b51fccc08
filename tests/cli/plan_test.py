# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""`spillway plan` foretells what `spillway train` does with the same flags: bytes to the byte, memory within its figure."""
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import fresh, program, temporary_folder, train  # noqa: E402

FEW, MANY = 3, 9
MODEL = ["--model", "gpt2:4x192x4", "--context", "96", "--batch", "4", "--seq", "80"]
RUNS = {
    "all in memory": [],
    "state on the drive": ["--nvme", "{drive}", "--host-mem", "38MiB", "--chunk-size", "64KiB"],
    "small device": ["--nvme", "{drive}", "--device", "sim:16MiB@4GB/s", "--host-mem", "24MiB", "--chunk-size", "64KiB"],
    "nothing waits": ["--nvme", "{drive}", "--host-mem", "30MiB", "--chunk-size", "64KiB", "--clip", "off",
                      "--nonfinite", "stop"],
    "lion": ["--nvme", "{drive}", "--host-mem", "30MiB", "--chunk-size", "64KiB", "--optimizer", "lion"],
    "lamb": ["--nvme", "{drive}", "--host-mem", "38MiB", "--chunk-size", "64KiB", "--optimizer", "lamb"],
    "adafactor": ["--nvme", "{drive}", "--host-mem", "38MiB", "--chunk-size", "64KiB", "--optimizer", "adafactor"],
    "lars, nothing clipped": ["--nvme", "{drive}", "--host-mem", "26MiB", "--chunk-size", "128KiB", "--optimizer", "lars",
                              "--clip", "off", "--nonfinite", "stop"],
    "int8 state": ["--nvme", "{drive}", "--host-mem", "28MiB", "--chunk-size", "64KiB", "--state", "int8"],
    "one copy": ["--nvme", "{drive}", "--host-mem", "38MiB", "--chunk-size", "64KiB", "--durable", "off"],
    "bf16 state of lion": ["--nvme", "{drive}", "--host-mem", "28MiB", "--chunk-size", "64KiB", "--state", "bf16",
                           "--optimizer", "lion"],
}


def plan(*arguments, code=0):
    done = subprocess.run([program(), "plan", *map(str, arguments), "--json", "-"], capture_output=True, text=True)
    assert done.returncode == code, (done.returncode, done.stderr)
    return json.loads(done.stdout) if code == 0 else done.stderr


def check_run(name, arguments, folder):
    arguments = [argument.format(drive=folder / "drive") for argument in arguments]
    (fresh(folder) / "drive").mkdir(parents=True)
    told = plan(*MODEL, *arguments, "--profile", folder.parent / "profile.json")
    # Beginning and end of a run move bytes of their own: they are the same in a shorter run.
    done, shorter = [train(fresh(folder / str(steps)), *MODEL, *arguments, "--steps", steps, "--probe", "off",
                           "--eval-sequences", "0", "--commit-every", "2") for steps in (MANY, FEW)]
    per_step = told["bytes_per_step"]
    moved = {key: (done["bytes"][key] - shorter["bytes"][key]) / (MANY - FEW) for key in done["bytes"]}
    print(f"{name:20} read {moved['nvme_read']:.0f}, written {moved['nvme_written']:.0f} a step; "
          f"{told['prediction']['step_s']:.3f} s predicted, {done['wall_s'] / MANY:.3f} s taken", flush=True)
    for direction in ("nvme_read", "nvme_written"):
        assert moved[direction] == per_step[direction], (direction, moved, per_step)
    commit = told["prediction"]["commit"]
    cost = done["commit"]
    assert cost["commits"] == done["commits"] - 1, (cost, done["commits"])
    # Beside the planes a page or two: the client's state, and a record that says that a commit's bytes are no more.
    assert abs(cost["bytes_per_commit"] - commit["bytes"]) <= 8192, (cost, commit)
    assert cost["write_s"] + cost["flush_s"] <= cost["wall_s"] * (1 + 1e-6) and cost["exposed_s"] > 0, cost
    assert abs(commit["hidden_s"] + commit["exposed_s"] - commit["seconds"]) < 1e-9, commit
    # Beside weights and gradients, a step's tokens and its loss cross the link.
    for direction in ("h2d", "d2h"):
        assert 0 <= moved[direction] - per_step[direction] < 4096, (direction, moved, per_step)
    for tier in ("host", "device"):
        assert done["peak"][f"{tier}_bytes"] <= told["tiers"][tier]["planned_bytes"], (tier, done["peak"], told["tiers"])
    assert told["exact"] is done["exact"] is ("--state" not in arguments)
    assert told["tiers"]["nvme"]["planned_bytes"] == done["plan"]["disk_bytes"]
    assert told["placement"] and told["model"]["parameters"] == done["model"]["parameters"]
    prediction = told["prediction"]
    assert prediction["step_s"] > prediction["bound_s"] * (1 - 1e-9) > 0, prediction
    assert abs(max(prediction["lane_s"].values()) - prediction["bound_s"]) < 1e-12, prediction
    assert prediction["step_s"] <= sum(prediction["phase_s"].values()) + max(prediction["lane_s"].values())


def main():
    with temporary_folder() as top:
        folder = pathlib.Path(top) / "case"
        for name, arguments in RUNS.items():
            check_run(name, arguments, folder)
        drive = folder / "drive"
        assert "--model is needed" in plan(code=2)
        assert "no file" in plan(*MODEL, "--data", folder / "missing.txt", code=2)
        assert "is no folder" in plan(*MODEL, "--nvme", folder / "missing", code=2)
        refusal = plan(*MODEL, "--host-mem", "8MiB", "--nvme", drive, code=2)
        assert "8388608 are available" in refusal and "raise the budget" in refusal, refusal
        before = sorted(path for path in folder.rglob("*"))
        told = plan(*MODEL, "--nvme", drive, "--host-mem", "38MiB", "--out", folder / "never", "--budget", "1h",
                    "--tbw", "600TB", "--profile", folder.parent / "profile.json")
        assert sorted(path for path in folder.rglob("*")) == before, "plan left something behind"
        assert told["endurance"]["endurance_days"] > 0 and told["compute_optimum"]["tokens"] > 0, told
        assert plan(*MODEL, "--probe", "off")["prediction"] is None


main()
