# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Several devices that share each step: one run whatever their number, each holds its part."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import CORPUS, fresh, run, temporary_folder, train  # noqa: E402

RUN = ["--model", "gpt2:8x128x4", "--context", "64", "--batch", "4", "--lr", "3e-3", "--probe", "off",
       "--eval-sequences", "4", "--seed", "7"]
# The loss is the mean of the devices' means: a few roundings of a double.
LOSS_BOUND = 1e-14


def devices(count, memory="32MiB@4GB/s"):
    return ["--device", ",".join([f"sim:{memory}"] * count)]


def losses(folder):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def near(found, expected):
    return all(abs(x - y) <= LOSS_BOUND * abs(y) for x, y in zip(found, expected, strict=True))


def one_run_on_any_number(folder):
    results, curves = {}, {}
    for count in (1, 2, 4):
        results[count] = train(fresh(folder), *RUN, "--steps", "4", "--host-mem", "200MiB", *devices(count))
        curves[count] = losses(folder)
        peak, planned = results[count]["peak"], results[count]["plan"]
        shares = [item["bytes"] for item in planned["device_items"] if item["name"] == "shares of weights"]
        print(f"{count} devices: {results[count]['weights_xxh3']}, each held {peak['device_bytes']} bytes, "
              f"{planned['activation_bytes']} of them activations, {sum(shares)} shares of weights; "
              f"losses {curves[count]}", flush=True)
        assert planned["devices"] == count and peak["device_bytes"] <= planned["device_bytes"], planned
        assert results[count]["exact"] is True
        assert near(curves[count], curves[1]), curves
        assert near([results[count]["loss"]["eval"]], [results[1]["loss"]["eval"]])
    assert len({result["weights_xxh3"] for result in results.values()}) == 1, results
    held = [results[count]["peak"]["device_bytes"] for count in (1, 2, 4)]
    assert held[0] > held[1] > held[2], held
    # Shares and activations halve; units on their way do not.
    parts = {count: results[count]["plan"]["activation_bytes"] for count in (1, 2, 4)}
    assert parts[2] < 0.6 * parts[1] and parts[4] < 0.6 * parts[2], parts
    return results[1]["weights_xxh3"]


def resumed_on_another_number(folder, expected):
    fresh(folder)
    drive = ["--nvme", folder / "drive", "--chunk-size", "64KiB", "--host-mem", "40MiB"]
    at = ["--schedule-steps", "4", *RUN]
    train(folder, *at, "--steps", "1", *devices(4), *drive)
    train(folder, *at, "--steps", "2", *devices(2), "--resume", *drive)
    train(folder, *at, "--steps", "3", *devices(1), "--resume", *drive)
    result = train(folder, *at, "--steps", "4", *devices(4, "8MiB"), "--resume", *drive, "--micro-batches", "1",
                   "--recompute", "full")
    assert result["weights_xxh3"] == expected and result["bytes"]["nvme_read"] > 0, result


def refused_by_name(folder):
    refusals = {
        "a multiple of 3": devices(3),
        "of one kind": ["--device", "sim:32MiB,sim:16MiB"],
        "sim:1GiB,sim:1GiB": ["--device", "cpu,cpu"],
        "--micro-batches 4 does not divide --batch 2 / devices": [*devices(2), "--micro-batches", "4"],
        "device memory": devices(2, "2MiB"),
    }
    for text, arguments in refusals.items():
        target = fresh(folder) / "run"
        code, _, said = run(["train", "--data", CORPUS, "--out", target, *RUN, "--steps", "1", *arguments], None)
        assert code == 2 and text in said and not target.exists(), (code, said)


def main():
    with temporary_folder() as top:
        folder = pathlib.Path(top) / "case"
        weights = one_run_on_any_number(folder)
        resumed_on_another_number(folder, weights)
        refused_by_name(folder)


main()
