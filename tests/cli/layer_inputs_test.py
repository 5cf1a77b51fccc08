# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Layers' inputs on the device, in host memory, on a drive and made again: one set of weights, budgets that hold, and what no
budget holds refused."""
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import CORPUS, fresh, run, temporary_folder, train  # noqa: E402

MIB = 1 << 20
RUN = ["--model", "gpt2:16x64x2", "--context", "128", "--batch", "16", "--micro-batches", "4", "--recompute", "full",
       "--steps", "2", "--probe", "off", "--eval-sequences", "1",
       "--threads", "2"]
INPUT_BYTES = 16 * 128 * 64 * 4  # of a layer
DRIVE = ["--nvme", "{folder}/drive"]
DEVICE = ["--device", "sim:6MiB@4GB/s"]
SMALL = [*DRIVE, "--chunk-size", "64KiB"]

# Arguments, and where inputs have to rest besides the device, or that some have to be made again.
PLACEMENTS = {
    "on the device": ([], set()),
    "a small device, in host memory": ([*DEVICE, "--host-mem", "64MiB"], {"host"}),
    "a small device, host memory and drive": ([*DEVICE, *SMALL, "--host-mem", "22MiB"], {"host", "nvme"}),
    "a small device, on the drive": ([*DEVICE, *SMALL, "--host-mem", "19MiB"], {"nvme"}),
    "a small host, on the drive": ([*SMALL, "--host-mem", "23MiB"], {"nvme"}),
    "a small host, made again": (["--host-mem", "29MiB"], {"made_again"}),
    "two devices, on the drive": (["--device", "sim:5MiB,sim:5MiB", *SMALL, "--host-mem", "22MiB"], {"nvme"}),
}


def check_bytes(result, steps):
    """The drive moved what the plan says; an input that leaves is written once and read once a step."""
    plan, moved = result["plan"], result["bytes"]
    inputs = plan["layer_inputs"]
    layers = sum(inputs[tier]["layers"] for tier in ("device", "host", "nvme", "made_again"))
    assert layers == 16 and inputs["nvme"]["bytes"] == inputs["nvme"]["layers"] * INPUT_BYTES, inputs
    assert plan["nvme_written_bytes_per_step"] >= inputs["nvme"]["bytes"], plan
    assert moved["nvme_read"] >= steps * inputs["nvme"]["bytes"] and moved["nvme_written"] >= steps * inputs["nvme"]["bytes"], moved
    leaving = inputs["host"]["bytes"] + inputs["nvme"]["bytes"]
    for way in ("h2d", "d2h"):  # where all memory is one there is no link to cross
        assert moved[way] == 0 if result["device"] == "cpu" else moved[way] >= steps * leaving and moved[way] > 0, (way, moved)
    peak = result["peak"]
    assert peak["host_bytes"] <= plan["host_budget_bytes"] and peak["device_bytes"] <= plan["device_budget_bytes"], peak


def check_plan(folder):
    """`plan` shows the same placement, and counts the traffic of both edges."""
    arguments = [part.format(folder=folder) for part in PLACEMENTS["a small device, host memory and drive"][0]]
    _, out, text = run(["plan", *RUN, *arguments, "--json", "-"])
    plan = json.loads(out)
    inputs = plan["layer_inputs"]
    assert inputs["host"]["bytes"] > 0 and inputs["nvme"]["bytes"] > 0, inputs
    traffic = plan["bytes_per_step"]
    assert traffic["nvme_layer_inputs"] == inputs["nvme"]["bytes"], traffic
    assert traffic["link_layer_inputs"] == inputs["nvme"]["bytes"] + inputs["host"]["bytes"], traffic
    assert re.search(r"layer inputs +\S+ \S+ on the device, \S+ \S+ in host memory, \S+ \S+ on the drive", text), text


def check_refused(top):
    """Without a drive the same memory is refused, and the message says what would help."""
    out = pathlib.Path(top) / "refused"
    _, _, message = run(["train", "--data", CORPUS, "--out", out, *RUN, "--host-mem", "23MiB"], expect=2)
    needed, available = map(int, re.search(r"(\d+) bytes are needed at least and (\d+) are available", message).groups())
    assert needed > available == 23 * MIB and "--nvme" in message and "layers' inputs" in message, message
    assert not out.exists()


def main():
    hashes = {}
    with temporary_folder() as top:
        folder = pathlib.Path(top) / "case"
        for name, (arguments, tiers) in PLACEMENTS.items():
            trace = ["--trace", f"{top}/trace.json"] if name == "a small device, on the drive" else []
            result = train(fresh(folder), *RUN, *trace, *(part.format(folder=folder) for part in arguments))
            inputs = result["plan"]["layer_inputs"]
            hashes[name] = result["weights_xxh3"]
            print(f"{name:40} {result['weights_xxh3']} {result['wall_s']:.1f} s, {inputs}, {result['stall_s']}", flush=True)
            assert {tier for tier in ("host", "nvme", "made_again") if inputs[tier]["layers"] > 0} == tiers, inputs
            check_bytes(result, steps=2)
            assert not list((folder / "drive").rglob("spillway.scratch.*")), "a scratch file has a name"
            if trace:
                lanes = {lane["name"]: lane for lane in result["trace"]["lanes"]}
                assert lanes["layer inputs"]["busy_s"] > 0, lanes
        assert len(set(hashes.values())) == 1, hashes
        check_plan(folder)
        check_refused(top)


main()
