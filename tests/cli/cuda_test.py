# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The trainer on cuda:0, on the look-alike of the CUDA driver: one hash however the run is placed, the losses of
the processor, and no breach of the driver's rules. The kernels that run are the real sources, emulated."""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import fresh, look_alike, run, seen, skip, temporary_folder, train  # noqa: E402

# Nothing of it is a multiple of a kernel's tile.
KIND = ["--model", "gpt2:2x16x2", "--context", "8", "--batch", "4", "--seq", "7", "--lr", "3e-3", "--warmup", "1",
        "--probe", "off", "--eval-sequences", "2", "--seed", "7", "--threads", "2"]
RUN = [*KIND, "--steps", "2"]
GPU = ["--device", "cuda:0"]
DRIVE = ["--nvme", "{folder}/drive", "--chunk-size", "64KiB"]
UNCLIPPED = ["--clip", "off", "--nonfinite", "stop"]
PLACEMENTS = {
    "all in memory": [],
    "4 micro-batches, all recomputed": ["--micro-batches", "4", "--recompute", "full"],
    "little memory, drive": [*DRIVE, "--host-mem", "18MiB", "--device-mem", "2MiB"],
}


def train_on_gpu(folder, environment, report, arguments):
    arguments = [argument.format(folder=folder) for argument in arguments]
    result = train(fresh(folder), *RUN, *GPU, *arguments, env=environment)
    counts = seen(report)
    assert counts["kernels"] > 0 and counts["allocations"] == 0 and counts["registrations"] == 0, counts
    assert counts["pageable_copies"] == 0, counts
    assert counts["contexts_made"] == 1, counts  # made before host memory was looked at, and kept
    assert result["device"] == "cuda:0" and result["updates"] == 2, result
    assert result["bytes"]["h2d"] > 0 and result["bytes"]["d2h"] > 0, result
    return result


def check_losses(result, on_host):
    for loss in ("first", "last", "eval"):
        expected = on_host["loss"][loss]
        assert abs(result["loss"][loss] - expected) < 1e-4 * expected, (loss, result["loss"], on_host["loss"])


def check_placements(top, environment, report):
    """Returns the hash that all of them have."""
    on_host = train(fresh(top / "host"), *RUN)
    hashes = {}
    for name, arguments in PLACEMENTS.items():
        result = train_on_gpu(top / "case", environment, report, arguments)
        hashes[name] = (result["weights_xxh3"], result["loss"]["last"])
        print(f"{name:34} {hashes[name]} {result['wall_s']:.1f} s", flush=True)
        check_losses(result, on_host)
    assert len(set(hashes.values())) == 1, hashes
    return result["weights_xxh3"]


def check_update_in_backward(top, environment, report):
    result = train_on_gpu(top / "case", environment, report, [*DRIVE, *UNCLIPPED])
    check_losses(result, train(fresh(top / "host"), *RUN, *UNCLIPPED))


def check_resume(top, environment, whole_hash):
    """One step, then one more in another placement, are two steps."""
    folder = top / "parts"
    train(fresh(folder), *KIND, *GPU, "--schedule-steps", "2", "--steps", "1", env=environment)
    resumed = train(folder, *GPU, "--resume", "--steps", "2", "--micro-batches", "2", "--probe", "off", env=environment)
    assert resumed["weights_xxh3"] == whole_hash, (resumed, whole_hash)
    run(["inspect", folder / "run"])


def check_refusals(top, environment):
    into = ["train", "--data", __file__, "--out", top / "none", *RUN]
    _, _, said = run([*into, "--device", "cuda:1"], 2, env=environment)
    assert "cuda:1" in said and "1 devices" in said, said
    _, _, said = run([*into, *GPU, "--device-mem", "1TiB"], 2, env=environment)
    assert "1TiB" in said and "are free" in said, said
    long = ["--model", "gpt2:1x16x2", "--context", "8192", "--batch", "1", "--steps", "1", *GPU]
    for verb in (["train", "--data", __file__, "--out", top / "none"], ["plan"]):
        _, _, said = run([*verb, *long], 2, env=environment)
        assert "--seq 8192" in said and "6144" in said, said
    old = {**environment, "SPILLWAY_STANDIN_CAPABILITY": "7"}
    _, out, _ = run(["info", "--json", "-"], env=old)
    refusal = json.loads(out)["gpus"][0]["refusal"]
    assert "compute capability 7.0" in refusal, refusal
    _, _, said = run([*into, *GPU], 2, env=old)
    assert refusal in said, said
    assert not (top / "none").exists()


def main():
    if "SPILLWAY_CUDA_STANDIN" not in os.environ:
        skip("the look-alike of the CUDA driver was not built")
    with temporary_folder() as name:
        top = pathlib.Path(name)
        environment, report = look_alike(top)
        _, out, _ = run(["info", "--json", "-"], env=environment)
        found = json.loads(out)
        if found["cuda"]["refusal"]:
            skip(found["cuda"]["refusal"])
        assert found["gpus"][0]["name"] == "Stand-in", found
        whole_hash = check_placements(top, environment, report)
        check_update_in_backward(top, environment, report)
        check_resume(top, environment, whole_hash)
        check_refusals(top, environment)


main()
