# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""`train --trace`: a trace changes nothing, its lanes add up to the wall time, and no end of a run or of its disk spoils
it."""
import collections
import json
import pathlib
import resource
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import CORPUS, fresh, program, run, temporary_folder, train  # noqa: E402

RUN = ["--model", "gpt2:2x128x2", "--context", "64", "--batch", "2", "--seq", "64", "--schedule-steps", "100",
       "--eval-sequences", "0", "--probe", "off", "--chunk-size", "64KiB", "--threads", "2"]
TINY = ["--model", "gpt2:1x32x1", "--context", "32", "--batch", "1", "--seq", "8", "--schedule-steps", "9000",
        "--eval-sequences", "0", "--probe", "off", "--threads", "1"]
STALLS = ("nvme_read", "nvme_write", "link", "cpu", "commit", "devices")
CAUSES = {*STALLS, "compute", "weights", "gradients", "other"}


def spans(trace):
    """Of each row: (begin, end) in seconds, in the file's order."""
    rows = collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            rows[event["tid"]].append((event["ts"] * 1e-6, (event["ts"] + event["dur"]) * 1e-6))
    return rows


def union_s(intervals):
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(intervals):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


def check_sums(trace, wall_s):
    other = trace["otherData"]
    assert abs(other["wall_s"] - wall_s) < 0.01 * wall_s, (other["wall_s"], wall_s)
    assert other["dropped_events"] == 0, other
    rows = spans(trace)
    for intervals in rows.values():
        for (_, end), (begin, _) in zip(intervals, intervals[1:]):
            assert begin >= end - 2e-9, (end, begin)
    assert all(0 <= begin <= end <= other["wall_s"] + 1e-6 for row in rows.values() for begin, end in row)
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert set(rows) <= set(names), (set(rows), names)
    owned = [tid for lane in other["lanes"] for tid in lane["tids"]]
    assert len(owned) == len(set(owned)), owned
    for lane in other["lanes"]:
        busy = union_s([span for tid in lane["tids"] for span in rows.get(tid, [])])
        assert abs(busy - lane["busy_s"]) < 0.001 * wall_s, (lane, busy)
        assert set(lane["idle_s"]) == CAUSES and min(lane["idle_s"].values()) >= 0, lane
        idle = sum(lane["idle_s"].values())
        assert abs(busy + idle - wall_s) < 0.01 * wall_s, (lane["name"], busy, idle, wall_s)
    return {lane["name"]: lane for lane in other["lanes"]}


def check_what_ran(trace, lanes, steps, blocks):
    count = collections.Counter(event["name"] for event in trace["traceEvents"] if event["ph"] == "X")
    assert count["step"] == steps, count
    for name in ("block_forward", "block_backward"):
        assert count[name] == steps * blocks, count
    assert min(count[name] for name in ("read", "write", "flush", "take", "scan", "join", "update", "commit")) > 0, count
    drive = [event["args"]["bytes"] for event in trace["traceEvents"] if event["name"] == "read" and event["ph"] == "X"]
    assert sum(drive) > 1 << 20, sum(drive)
    for name, lane in lanes.items():
        assert lane["busy_s"] > 0, (name, lane)


def check_placement(folder, device, host_mem, expected_lanes):
    plain = train(folder / "plain", *RUN, "--steps", "6", "--commit-every", "3", "--device", device)
    assert "trace" not in plain, plain["trace"]
    result = train(folder / "traced", *RUN, "--steps", "6", "--commit-every", "3", "--device", device,
                   "--host-mem", host_mem, "--nvme", folder / "traced" / "drive", "--trace", folder / "t.json")
    assert result["weights_xxh3"] == plain["weights_xxh3"], (result["weights_xxh3"], plain["weights_xxh3"])
    trace = json.loads((folder / "t.json").read_text())
    lanes = check_sums(trace, result["wall_s"])
    assert set(lanes) == expected_lanes, set(lanes)
    ranks = result["plan"]["devices"]
    check_what_ran(trace, lanes, steps=6, blocks=2 * result["plan"]["micro_batches"] * ranks)
    summary = {lane["name"]: lane for lane in result["trace"]["lanes"]}
    for name, lane in lanes.items():
        shown = summary[name]
        assert shown["busy_s"] == lane["busy_s"], (shown, lane)
        assert shown["idle_s"] == {cause: s for cause, s in lane["idle_s"].items() if s > 0}, (shown, lane)
    # What compute stood still for is what the run reports, in the same words.
    stalls = [device["stall_s"] for device in result["devices"]] or [result["stall_s"]]
    assert len(stalls) == ranks and result["stall_s"] == max(stalls, key=lambda stall: sum(stall.values())), result
    for rank, stall in enumerate(stalls):
        assert set(stall) == set(STALLS), stall
        compute = lanes["compute" if ranks == 1 else f"device {rank} compute"]
        for cause in STALLS:
            idle = compute["idle_s"][cause]
            assert idle <= stall[cause] + 0.02 * result["wall_s"], (rank, cause, idle, stall)
        if ranks > 1:
            check_device(trace, lanes, rank, stall, result["wall_s"])
    assert result["peak"]["host_bytes"] <= result["plan"]["host_bytes"], (result["peak"], result["plan"])


def check_device(trace, lanes, rank, stall, wall_s):
    """What a device of several waits for is said, nearly all of it, and it runs its own part of every pass."""
    compute = lanes[f"device {rank} compute"]
    unsaid = compute["idle_s"]["other"]
    assert compute["busy_s"] + sum(stall.values()) >= 0.98 * (wall_s - unsaid), (rank, compute, stall)
    assert stall["devices"] > 0, (rank, stall)
    names = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    passes = [event for event in trace["traceEvents"] if event["name"] in ("block_forward", "block_backward")]
    own = [event for event in passes if names[event["tid"]] == f"device {rank} compute"]
    assert 2 * len(own) == len(passes), (rank, len(own), len(passes))


def check_picture(trace, picture, lanes):
    """Every lane is drawn, and busy for as long as the trace says."""
    script = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "trace_picture.py"
    subprocess.run([sys.executable, script, trace, picture, "--title", "<a & b>"], check=True)
    words = [text.text for text in xml.etree.ElementTree.parse(picture).iter() if text.tag.endswith("text")]
    other = json.loads(trace.read_text())["otherData"]
    assert "<a & b>" in words and {lane["name"] for lane in other["lanes"]} == lanes, words
    for lane in other["lanes"]:
        share = float(words[words.index(lane["name"]) + 1].removesuffix(" %"))
        assert abs(share - 100 * lane["busy_s"] / other["wall_s"]) < 0.2, (lane["name"], share, lane)
    outside = subprocess.run([sys.executable, script, trace, picture, "--from", "9999"], capture_output=True, text=True)
    assert outside.returncode != 0 and "nothing of the trace" in outside.stderr, outside


def check_interrupted(folder):
    """A signal ends a run with a whole trace, that another run could not take the name of."""
    (folder / "drive").mkdir(parents=True)
    command = [program(), "train", "--data", CORPUS, "--out", folder / "run", "--json", folder / "r.json", *RUN,
               "--steps", "100000", "--schedule", "constant", "--nvme", folder / "drive",
               "--trace", folder / "run" / "t.json"]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as training:
        log = folder / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (not log.exists() or log.read_text().count("\n") < 3):
            time.sleep(0.02)
        assert not (folder / "run" / "t.json").exists()
        _, _, refused = run(["bench", "step", "--elements", "1", "--trace", folder / "run" / "t.json"], expect=None)
        assert "another run writes its trace there" in refused, refused
        _, _, refused = run(["train", "--data", CORPUS, "--out", folder / "other", *TINY, "--steps", "1",
                             "--trace", folder / "run" / "t.json"], expect=None)
        assert "another run writes its trace there" in refused and not (folder / "other").exists(), refused
        training.send_signal(signal.SIGTERM)
        said = training.communicate(timeout=60)[1]
    assert training.returncode == 130, (training.returncode, said)
    result = json.loads((folder / "r.json").read_text())
    check_sums(json.loads((folder / "run" / "t.json").read_text()), result["wall_s"])
    assert not list(folder.rglob("*.spillway-partial"))


def check_full_disk(folder):
    """Files may not grow beyond 2 MiB: the trace ends there, the run does not."""
    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))

    arguments = ["train", "--data", CORPUS, "--out", folder / "run", "--json", folder / "r.json", *TINY,
                 "--steps", "1500", "--trace", folder / "t.json"]
    folder.mkdir()
    _, _, said = run(arguments, preexec_fn=small_files)
    assert said.count("it ends there, and the run goes on") == 1, said
    result = json.loads((folder / "r.json").read_text())
    assert result["steps"] == 1500 and result["trace"]["failure"] and result["trace"]["dropped_events"] > 0, result
    trace = json.loads((folder / "t.json").read_text())
    assert (folder / "t.json").stat().st_size <= 2 << 20
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == result["trace"]["events"]
    for lane in trace["otherData"]["lanes"]:
        assert abs(lane["busy_s"] + sum(lane["idle_s"].values()) - result["wall_s"]) < 0.01 * result["wall_s"], lane


def main():
    with temporary_folder() as name:
        folder = pathlib.Path(name)
        drive = {"compute", "weights", "gradients", "update", "commit", "drive 0 reads", "drive 0 writes"}
        check_placement(fresh(folder / "cpu"), "cpu", "16MiB", drive)
        check_placement(fresh(folder / "sim"), "sim:8MiB@1GB/s", "14MiB", drive | {"link up", "link down"})
        check_picture(folder / "sim" / "t.json", folder / "sim.svg", drive | {"link up", "link down"})
        devices = {f"device {rank} {what}" for rank in (0, 1) for what in ("compute", "link up", "exchange", "link down")}
        check_placement(fresh(folder / "two"), "sim:8MiB@1GB/s,sim:8MiB@1GB/s", "16MiB", drive - {"compute"} | devices)
        check_interrupted(folder / "stopped")
        check_full_disk(folder / "full")
    print("traces hold")


if __name__ == "__main__":
    main()
