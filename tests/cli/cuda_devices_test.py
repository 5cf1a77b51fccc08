# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Several GPUs that share each step, on the look-alike of the CUDA driver: the bits of one GPU, every copy ordered and
page-locked, a GPU that fails named."""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import fresh, look_alike, run, seen, skip, temporary_folder, train  # noqa: E402

# A layer has two tiles, one for each GPU.
RUN = ["--model", "gpt2:2x40x2", "--context", "8", "--batch", "4", "--seq", "5", "--lr", "3e-3", "--warmup", "1",
       "--probe", "off", "--eval-sequences", "0", "--seed", "7", "--threads", "2", "--schedule-steps", "2"]
TWO = ["--device", "cuda:0,cuda:1"]
DRIVE = ["--nvme", "{folder}/drive", "--chunk-size", "64KiB", "--host-mem", "20MiB", "--device-mem", "2MiB"]


def train_on(devices, folder, environment, report, *arguments):
    arguments = [argument.format(folder=folder) for argument in arguments]
    result = train(folder, *RUN, "--device", devices, *arguments, env=environment)
    counts = seen(report)
    assert counts["kernels"] > 0 and counts["allocations"] == 0 and counts["registrations"] == 0, counts
    assert counts["pageable_copies"] == 0 and counts["contexts_made"] == devices.count("cuda"), counts
    assert result["device"] == devices, result["device"]
    return result, counts


def check_bits(folder, environment, report):
    one, counts = train_on("cuda:0", fresh(folder), environment, report, "--steps", "2")
    assert counts["peer_copies"] == 0, counts
    for arguments in ([], [*DRIVE, "--micro-batches", "2", "--recompute", "full"]):
        two, counts = train_on("cuda:0,cuda:1", fresh(folder), environment, report, "--steps", "2", *arguments)
        print(two["weights_xxh3"], counts, flush=True)
        assert two["weights_xxh3"] == one["weights_xxh3"], (two, one)
        assert counts["peer_copies"] > 0 and counts["peers"] == 2, counts
        assert [device["name"] for device in two["devices"]] == ["cuda:0", "cuda:1"], two["devices"]
        assert abs(two["loss"]["last"] - one["loss"]["last"]) < 1e-14 * one["loss"]["last"], (two["loss"], one["loss"])
    fresh(folder)
    train_on("cuda:0,cuda:1", folder, environment, report, "--steps", "1")
    resumed, _ = train_on("cuda:0", folder, environment, report, "--steps", "2", "--resume")
    assert resumed["weights_xxh3"] == one["weights_xxh3"], (resumed, one)


def check_failure(folder, environment):
    """The context of the second GPU is lost in a copy of the second step: the run names it, and goes on from its
    commit without it."""
    folder = fresh(folder)
    train(folder, *RUN, *TWO, "--steps", "1", env=environment)
    broken = {**environment, "SPILLWAY_STANDIN_FAULT": "1 copy 6 700"}
    again = ["train", "--out", folder / "run", *TWO, "--resume", "--steps", "2", "--probe", "off"]
    _, _, said = run(again, 1, env=broken, timeout=60)
    assert "rank 1 of 2 (cuda:1)" in said and "CUDA_ERROR_ILLEGAL_ADDRESS" in said, said
    run(["inspect", folder / "run"])


def check_refusals(top, environment):
    refusals = {"cuda:2": "cuda:0,cuda:2", "given twice": "cuda:1,cuda:1", "name another device alone": "cuda:0,sim:1GiB"}
    for text, devices in refusals.items():
        code, _, said = run(["train", "--data", __file__, "--out", top / "none", *RUN, "--steps", "1", "--device", devices],
                            None, env=environment)
        assert code == 2 and text in said and not (top / "none").exists(), (code, said)


def main():
    if "SPILLWAY_CUDA_STANDIN" not in os.environ:
        skip("the look-alike of the CUDA driver was not built")
    with temporary_folder() as name:
        top = pathlib.Path(name)
        environment, report = look_alike(top)
        environment["SPILLWAY_STANDIN_DEVICES"] = "2"
        _, out, _ = run(["info", "--json", "-"], env=environment)
        found = json.loads(out)
        if found["cuda"]["refusal"]:
            skip(found["cuda"]["refusal"])
        assert len(found["gpus"]) == 2, found["gpus"]
        check_bits(top / "case", environment, report)
        check_failure(top / "failed", environment)
        check_refusals(top, environment)


main()
