# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""P2: a flipped bit in an extent is found, named (tensor, tile, path, offset) and not trained on."""
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import CORPUS, run, temporary_folder, train  # noqa: E402

RUN = ["--model", "gpt2:2x128x4", "--context", "64", "--batch", "2", "--seq", "64", "--probe", "off",
       "--eval-sequences", "2"]


def flip(path, offset):
    with open(path, "r+b") as extents:
        extents.seek(offset)
        byte = extents.read(1)[0]
        extents.seek(offset)
        extents.write(bytes([byte ^ 0x10]))


def check_one(folder, source, offset):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    # The manifest holds the extents inside OUT by a relative path, so the copy is a run of its own.
    extents = folder / "run" / "spillway.state" / "extents" / "extents.0"
    assert run(["inspect", folder / "run"])[0] == 0
    flip(extents, offset)
    code, out, err = run(["inspect", folder / "run"], expect=1)
    pattern = rf"tensor.*'transformer\.[^']+'.*tile \d+ .*{re.escape(str(extents))}.* offset (\d+)"
    found = re.search(pattern, out + err)
    assert found, out + err
    tile = int(found.group(1))
    assert tile <= offset < tile + 65536, (tile, offset)
    code, out, err = run(["train", "--data", CORPUS, "--out", folder / "run", *RUN, "--steps", "6", "--resume"], expect=1)
    assert re.search(pattern, err) and "lost" in err, err
    code, out, err = run(["export", folder / "run", folder / "exported"], expect=None)
    weights_hit = "plane weight" in out + err or "plane residue" in out + err
    assert (code == 1) == weights_hit, (code, err)
    assert weights_hit is False or not (folder / "exported" / "model.safetensors").exists()


def main():
    with temporary_folder() as top:
        source = pathlib.Path(top) / "source"
        train(source, *RUN, "--steps", "4")
        inspected = run(["inspect", source / "run", "--json", "-"])[1]
        assert inspected
        size = (source / "run" / "spillway.state" / "extents" / "extents.0").stat().st_size
        print(f"extents of {size} bytes")
        hits = 0
        # Only the copies that the commit names are whole; flipping the others must go unnoticed.
        for eighth in range(8):
            offset = size * eighth // 8 + 40_000 + eighth
            try:
                check_one(pathlib.Path(top) / "copy", source, offset)
                hits += 1
            except AssertionError as error:
                if "exit 0, expected 1" not in str(error):
                    raise
        print(f"{hits} of 8 flips hit the committed copies; each was named")
        # The planes' two copies have unequal lengths, so either commit parity hits some and misses some.
        assert 2 <= hits <= 6, hits


main()
