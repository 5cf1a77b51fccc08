# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""P3: 0.3 G parameters (3.6 GB of state) train inside a memory cap of 1.25 GiB, and are refused without a drive.

The cap is a memory cgroup where one can be made; the peak of the resident memory is checked in any case.
"""
import os
import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "support")]
from memory_cap import MemoryCap  # noqa: E402
from support import CORPUS, run, skip, temporary_folder, train  # noqa: E402

CAP_BYTES = 1280 << 20
HOST_BYTES, DEVICE_BYTES, OVERHEAD_BYTES = 768 << 20, 256 << 20, 150 << 20
MODEL = ["--model", "gpt2:24x1024x16", "--context", "256", "--batch", "1", "--seq", "128", "--steps", "3",
         "--eval-sequences", "1", "--probe", "off"]
MEMORY = ["--device", "sim:256MiB@8GB/s", "--host-mem", "768MiB"]


def main():
    with temporary_folder() as top:
        if shutil.disk_usage(top).free < 14 << 30:
            skip("less than 14 GiB of disk are free")
        code, _, message = run(["train", "--data", CORPUS, "--out", f"{top}/refused", *MODEL, *MEMORY], expect=2)
        needed, available = map(int, re.search(r"(\d+) bytes are needed at least and (\d+) are available", message).groups())
        assert needed > available > 0 and not os.path.exists(f"{top}/refused"), message

        cap = MemoryCap(CAP_BYTES, top)
        try:
            result = train(top, *MODEL, *MEMORY, "--nvme", f"{top}/drive", preexec_fn=cap.enter)
        finally:
            cap.close()
        peak = result["peak"]
        print(f"cap {'by cgroup' if cap.enter else 'by resident memory only'}; peak {peak}; {result['wall_s']:.1f} s, "
              f"loss {result['loss']['first']:.4f} to {result['loss']['last']:.4f}")
        assert result["steps"] == 3 and result["model"]["parameters"] > 300_000_000, result["model"]
        assert peak["host_bytes"] <= HOST_BYTES and peak["device_bytes"] <= DEVICE_BYTES, peak
        assert peak["overhead_bytes"] <= OVERHEAD_BYTES, peak
        assert peak["rss_bytes"] <= CAP_BYTES, peak
        assert peak["rss_bytes"] <= peak["host_bytes"] + peak["device_bytes"] + OVERHEAD_BYTES, peak


main()
