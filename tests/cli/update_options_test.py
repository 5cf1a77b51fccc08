# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Clipping by value and by layer, and averages of the weights, as a user asks for them: placement changes no bit, and
what a run keeps is what export and generate read."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import fresh, run, temporary_folder, train  # noqa: E402

STEPS = 6
RUN = ["--model", "gpt2:2x128x2", "--context", "48", "--batch", "2", "--steps", STEPS, "--lr", "1e-2", "--probe", "off",
       "--eval-sequences", "2"]
SMALL = ["--nvme", "{folder}/drive", "--device", "sim:16MiB", "--chunk-size", "64KiB", "--host-mem"]


def small(folder, host_mem):
    return [word.format(folder=folder) for word in SMALL] + [host_mem]


def both(folder, arguments, host_mem):
    """In memory, and with state on the drive and a simulated device's memory: the same weights and average."""
    results = [train(fresh(folder), *RUN, *arguments),
               train(fresh(folder), *RUN, *arguments, *small(folder, host_mem))]
    assert results[1]["bytes"]["nvme_read"] > 1 << 20, "this placement was meant to use the drive"
    for name in ("weights_xxh3", "average_xxh3", "exact"):
        assert results[0][name] == results[1][name], (arguments, name, results)
    assert results[0]["loss"]["eval_average"] == results[1]["loss"]["eval_average"], results
    return results[1]


def weights_of(folder, which, into):
    """The exported file's bytes."""
    _, out, _ = run(["export", folder / "run", into, "--weights", which, "--json", "-"])
    assert json.loads(out)["weights"] == which, out
    return (into / "model.safetensors").read_bytes()


def text_of(folder, which):
    return run(["generate", folder / "run", "--tokens", "20", "--temperature", "0", "--weights", which])[1]


def clipping(folder):
    hashes = {}
    for clip, exact in (("off", True), ("value:0.0001", True), ("layer:0.02", False)):
        result = both(folder, ["--clip", clip], "13MiB")
        assert result["exact"] is exact and result["settings"]["clip"] == clip, result
        hashes[clip] = result["weights_xxh3"]
    assert len(set(hashes.values())) == 3, hashes
    at_once = train(fresh(folder), *RUN, "--clip", "value:0.0001", "--nonfinite", "stop")
    assert at_once["weights_xxh3"] == hashes["value:0.0001"], at_once
    said = run(["train", *RUN, "--data", "x", "--out", folder / "x", "--clip", "tensor:1"], expect=2)[2]
    assert "--clip" in said and "layer:X" in said, said


def averages(folder):
    plain = train(fresh(folder), *RUN)
    assert plain["average_xxh3"] is None and plain["loss"]["eval_average"] is None, plain
    said = run(["export", folder / "run", folder / "hf", "--weights", "average"], expect=2)[2]
    assert "keeps no average" in said, said

    ema = both(folder, ["--average", "ema:0.5"], "15MiB")
    assert ema["weights_xxh3"] == plain["weights_xxh3"] and ema["exact"] is True, ema
    assert ema["average_xxh3"] not in (None, ema["weights_xxh3"]), ema
    assert ema["loss"]["eval_average"] != ema["loss"]["eval"], ema
    assert weights_of(folder, "average", folder / "a") != weights_of(folder, "last", folder / "b")

    # Of the last update alone the average is that update's weights.
    last = both(folder, ["--average", f"swa:{STEPS}"], "15MiB")
    assert last["average_xxh3"] == last["weights_xxh3"] == plain["weights_xxh3"], last
    assert last["loss"]["eval_average"] == last["loss"]["eval"], last
    assert weights_of(folder, "average", folder / "a") == weights_of(folder, "last", folder / "b")
    assert text_of(folder, "average") == text_of(folder, "last")
    return plain, ema


def resumed(folder, ema):
    """Interrupted by its length, and gone on elsewhere."""
    short = [*RUN, "--average", "ema:0.5", "--schedule-steps", STEPS]
    short[short.index("--steps") + 1] = 3
    train(fresh(folder), *short, *small(folder, "15MiB"))
    said = run(["train", "--data", "x", "--out", folder / "run", "--resume", "--average", "ema:0.9"], expect=2)[2]
    assert "--average ema:0.9: the run was started with ema:0.5" in said, said
    result = train(folder, "--resume", "--steps", STEPS, "--host-mem", "200MiB", "--probe", "off")
    assert result["resumed_from_step"] == 3, result
    for name in ("weights_xxh3", "average_xxh3"):
        assert result[name] == ema[name], (name, result)
    said = run(["generate", folder / "a", "--weights", "average"], expect=2)[2]
    assert "holds neither a run" in said, said


def never(folder):
    said = run(["train", *RUN, "--data", "x", "--out", folder / "x", "--average", "swa:7"], expect=2)[2]
    assert "--average swa:7: --steps 6 ends the run" in said, said


def main():
    with temporary_folder() as top:
        folder = pathlib.Path(top) / "case"
        clipping(folder)
        _, ema = averages(folder)
        resumed(folder, ema)
        never(folder)
    print("clipping and averages: the same bits wherever they are kept")


main()
