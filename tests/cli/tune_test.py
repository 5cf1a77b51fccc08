# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""A tuning, searched for on first use or written by hand: the same weights, within the same memory, told where it came
from, and nothing left on the drive."""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import fresh, run, temporary_folder, train  # noqa: E402

MODEL = ["--model", "gpt2:6x192x4", "--context", "64", "--batch", "2", "--threads", "2"]
RUN = [*MODEL, "--steps", "3", "--lr", "3e-3", "--probe", "off", "--eval-sequences", "0"]
FIELDS = {"chunk_bytes", "update_window", "weight_window", "io_block_bytes", "io_depth", "update_threads"}


def placed(folder, profile):
    return ["--nvme", folder / "drive", "--host-mem", "44MiB", "--profile", profile]


def sources(result):
    return {name: result["tuning"][name]["from"] for name in FIELDS}


def kept(profile):
    return json.loads(profile.read_text())["tunings"]


def within_budget(result):
    assert result["peak"]["host_bytes"] <= 44 << 20, result["peak"]
    assert result["bytes"]["nvme_read"] > 1 << 20, "this placement was meant to use the drive"


def searched(folder, profile):
    """Off, then a search of its own, then the profile's word; the same weights."""
    off = train(fresh(folder), *RUN, *placed(folder, profile), "--tune", "off")
    within_budget(off)
    assert not profile.exists() and set(sources(off).values()) == {"default"}, off["tuning"]
    usual = {name: off["tuning"][name]["value"] for name in FIELDS}
    assert usual["update_window"] == usual["weight_window"] == 4 and usual["update_threads"] == 2, usual

    short = train(fresh(folder), *RUN, *placed(folder, profile))
    assert not profile.exists() and not short["tuning"]["searched"], "so short a run is not searched for by itself"

    first = train(fresh(folder), *RUN, *placed(folder, profile), "--tune", "0.5s")
    within_budget(first)
    assert first["weights_xxh3"] == off["weights_xxh3"] == short["weights_xxh3"], (first, off)
    assert len(kept(profile)) == 1 and first["tuning"]["searched"], first["tuning"]
    assert not list((folder / "drive").glob("spillway.scratch*")), list((folder / "drive").iterdir())
    again = train(fresh(folder), *RUN, *placed(folder, profile), "--tune", "0.5s")
    assert len(kept(profile)) == 1 and again["tuning"] == first["tuning"], (again["tuning"], first["tuning"])
    return usual, off["weights_xxh3"]


def by_hand(folder, profile, usual, weights):
    """What a profile says is what a run does, and what its plan shows; a flag has the last word."""
    text = json.loads(profile.read_text())
    values = {"chunk_bytes": usual["chunk_bytes"] // 2, "update_window": 2, "weight_window": 3, "io_block_bytes": 1 << 16,
              "io_depth": 4, "update_threads": 1}
    text["tunings"][0].update(values=values, gain=1.5)
    profile.write_text(json.dumps(text, indent=2))
    tuned = train(fresh(folder), *RUN, *placed(folder, profile))
    within_budget(tuned)
    assert {name: tuned["tuning"][name]["value"] for name in FIELDS} == values, tuned["tuning"]
    assert set(sources(tuned).values()) == {"profile"} and tuned["tuning"]["gain"] == 1.5, tuned["tuning"]
    assert tuned["plan"]["chunk_tiles"] << 16 == values["chunk_bytes"], tuned["plan"]
    assert tuned["weights_xxh3"] == weights, tuned

    _, out, said = run(["plan", *MODEL, *placed(folder, profile), "--probe", "off", "--json", "-"])
    told = json.loads(out)
    assert told["tuning"] == tuned["tuning"], (told["tuning"], tuned["tuning"])
    assert told["bytes_per_step"]["nvme_read"] == tuned["plan"]["nvme_read_bytes_per_step"], told
    assert "update window 2 (profile)" in said, said

    flagged = train(fresh(folder), *RUN, *placed(folder, profile), "--update-window", "5", "--io-depth", "9")
    assert flagged["tuning"]["update_window"] == {"value": 5, "from": "flag"}, flagged["tuning"]
    assert sources(flagged)["io_depth"] == "flag" and sources(flagged)["chunk_bytes"] == "profile", flagged["tuning"]
    assert flagged["weights_xxh3"] == weights, flagged

    # Windows that the budget has no room for: the run goes by the defaults, and says why.
    text["tunings"][0]["values"].update(chunk_bytes=16 << 20, update_window=16)
    profile.write_text(json.dumps(text, indent=2))
    left = train(fresh(folder), *RUN, *placed(folder, profile))
    within_budget(left)
    assert left["tuning"]["note"] and set(sources(left).values()) == {"default"}, left["tuning"]
    assert left["weights_xxh3"] == weights, left

    # Values that no search gives are as good as none.
    text["tunings"][0]["values"].update(update_window=1000)
    profile.write_text(json.dumps(text, indent=2))
    ignored = train(fresh(folder), *RUN, *placed(folder, profile))
    assert not ignored["tuning"]["searched"] and ignored["weights_xxh3"] == weights, ignored


def refused(folder):
    for arguments, said in ((["--update-window", "65"], "--update-window is 65; the most is 64"),
                            (["--io-block", "5000"], "--io-block is 5000 bytes; it must be a multiple of 4096"),
                            (["--tune", "never"], "--tune")):
        text = run(["train", *RUN, "--data", "x", "--out", folder / "x", *arguments], expect=2)[2]
        assert said in text, text


def main():
    with temporary_folder() as top:
        folder, profile = pathlib.Path(top) / "case", pathlib.Path(top) / "profile.json"
        usual, weights = searched(folder, profile)
        by_hand(folder, profile, usual, weights)
        refused(folder)
    print("tuning: the same weights by every tuning")


main()
