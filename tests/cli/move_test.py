# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""P1 through moves: a run that is resumed on other drives again and again ends with the weights of one that stayed."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import program, run, temporary_folder, train  # noqa: E402

RUN = ["--model", "gpt2:4x192x4", "--context", "64", "--batch", "2", "--seq", "64", "--lr", "3e-3", "--warmup", "2",
       "--schedule-steps", "12", "--eval-sequences", "2", "--probe", "off", "--chunk-size", "64KiB", "--commit-every", "1"]
STATIONS = [["a", "b"], ["c"], ["c", "b"], None, ["a"]]


def extents_below(folder):
    return sorted(str(path) for path in folder.rglob("extents.*") if path.is_file())


def check_moves(folder):
    stayed = train(folder / "stayed", *RUN, "--steps", "12")
    moved = folder / "moved"
    for name in "abc":
        (moved / name).mkdir(parents=True)
    result = train(moved, *RUN, "--steps", "2", "--nvme", moved / "a")
    assert result["moved"] is None, result["moved"]
    steps = 2
    for station in STATIONS:
        steps += 2
        drives = ",".join(str(moved / name) for name in station) if station else "none"
        _, out, err = run(["train", "--out", moved / "run", "--resume", "--steps", steps, "--probe", "off",
                           "--nvme", drives, "--json", "-"])
        result = json.loads(out)
        assert "moved the state" in err, err
        assert result["moved"]["bytes"] > 10 << 20 and result["moved"]["seconds"] > 0, result["moved"]
        places = [str(moved / name / "spillway.extents") for name in station] if station else [str(moved / "run")]
        assert len(result["moved"]["to"]) == len(places), result["moved"]
        assert all(to.startswith(place) for to, place in zip(result["moved"]["to"], places)), result["moved"]
        assert result["resumed_from_step"] == steps - 2, result["resumed_from_step"]
        assert len(extents_below(moved)) == len(places), extents_below(moved)
        run(["inspect", moved / "run"])
        for place in (moved / "run", moved / "a", moved / "b", moved / "c"):
            listed = json.loads(run(["clean", place, "--json", "-"])[1])
            assert not listed["leftovers"], listed
    # Without --nvme, and with the same drive, it stays.
    assert steps == 12, steps
    for arguments in ([], ["--nvme", moved / "a"]):
        _, out, _ = run(["train", "--out", moved / "run", "--resume", "--probe", "off", "--json", "-", *arguments])
        assert json.loads(out)["moved"] is None, out
    assert json.loads(out)["weights_xxh3"] == stayed["weights_xxh3"] == result["weights_xxh3"], (out, stayed)
    run(["export", moved / "run", moved / "exported"])


def check_stop(folder):
    """A signal at any moment of a move, and of the start before it, leaves a run that goes on."""
    for name in "ab":
        (folder / name).mkdir(parents=True)
    train(folder, *RUN, "--steps", "1", "--nvme", folder / "a")
    steps = 1
    for delay in (0.02, 0.05, 0.1, 0.2):
        for number in (signal.SIGINT, signal.SIGKILL):
            target = folder / ("b" if (folder / "a" / "spillway.extents").exists() and
                               extents_below(folder / "a") else "a")
            child = subprocess.Popen([program(), "train", "--out", folder / "run", "--resume", "--steps", "500",
                                      "--probe", "off", "--nvme", target], stderr=subprocess.DEVNULL)
            time.sleep(delay)
            child.send_signal(number)
            assert child.wait(60) in (130, -number), child.returncode
            run(["inspect", folder / "run"])
    _, out, _ = run(["train", "--out", folder / "run", "--resume", "--steps", "500", "--probe", "off", "--nvme",
                     folder / "b", "--json", "-"], expect=0)
    assert json.loads(out)["steps"] == 500 and len(extents_below(folder)) == 1, extents_below(folder)


def check_refusals(folder):
    (folder / "a").mkdir(parents=True)
    train(folder, *RUN, "--steps", "1", "--nvme", folder / "a")
    resume = ["train", "--out", folder / "run", "--resume", "--steps", "2", "--probe", "off"]
    _, _, err = run([*resume, "--nvme", folder / "nowhere"], expect=2)
    assert "nowhere" in err and "does not exist" in err, err
    _, _, err = run([*resume, "--nvme", "none", "--host-mem", "20MiB"], expect=2)
    assert "bytes are needed" in err, err
    assert extents_below(folder) == extents_below(folder / "a"), "a refused move moved"
    assert run(resume)[0] == 0


def main():
    with temporary_folder() as top:
        check_moves(pathlib.Path(os.path.realpath(top)) / "moves")
        check_stop(pathlib.Path(os.path.realpath(top)) / "stop")
        check_refusals(pathlib.Path(os.path.realpath(top)) / "refusals")


main()
