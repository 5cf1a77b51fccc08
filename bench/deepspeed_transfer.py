# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""DeepSpeed's aio handle, as bench/storage_acceptance.py drives it: one JSON request a line in, one answer a line out.

    {"path": FILE, "direction": "read", "bytes": N, "passes": 1, "block": 1048576, "depth": 32,
     "threads": 1}
    {"bytes": N, "wall_s": S, "cpu_s": S}

Run by the Python of an environment with torch and deepspeed. The memory is DeepSpeed's own locked tensor, as in
its swap buffers; what is compiled on first use is done before the first answer.
"""
import json
import os
import resource
import sys
import time
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
# Libraries print to descriptor 1: the answers go to a private copy.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402  (after the descriptors are sorted out)
from deepspeed.ops.op_builder import AsyncIOBuilder  # noqa: E402

MEBIBYTE = 1 << 20
aio = AsyncIOBuilder().load()


class Lane:
    """A handle and the locked memory of what it moves."""

    def __init__(self, request: dict[str, Any], size: int) -> None:
        self.handle = aio.aio_handle(request["block"], request["depth"], False, True, request["threads"])
        self.tensor = self.handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        # No drive's compression or deduplication sees as far as this repeats.
        random = torch.empty(MEBIBYTE, dtype=torch.uint8).random_(0, 256)
        self.tensor.view(-1, MEBIBYTE).copy_(random.expand(size // MEBIBYTE, MEBIBYTE))

    def close(self) -> None:
        """Gives the memory back."""
        self.handle.free_cpu_locked_tensor(self.tensor)


def processor_seconds() -> float:
    """Of this process, threads included."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def transfer(request: dict[str, Any]) -> dict[str, float]:
    """Passes over the file; mixed traffic reads its first half and overwrites the second at the same time."""
    size, path, mixed = request["bytes"], request["path"], request["direction"] == "mixed"
    lanes = [Lane(request, size // 2), Lane(request, size // 2)] if mixed else [Lane(request, size)]
    cpu, start = processor_seconds(), time.perf_counter()
    for _ in range(request["passes"]):
        if mixed:
            lanes[0].handle.async_pread(lanes[0].tensor, path, 0)
            lanes[1].handle.async_pwrite(lanes[1].tensor, path, size // 2)
            for lane in lanes:
                lane.handle.wait()
        elif request["direction"] == "read":
            lanes[0].handle.sync_pread(lanes[0].tensor, path, 0)
        else:
            lanes[0].handle.sync_pwrite(lanes[0].tensor, path, 0)
    answer = {"bytes": size * request["passes"], "wall_s": time.perf_counter() - start, "cpu_s": processor_seconds() - cpu}
    for lane in lanes:
        lane.close()
    return answer


print(json.dumps({"ready": True}), file=answers, flush=True)
for line in sys.stdin:
    print(json.dumps(transfer(json.loads(line))), file=answers, flush=True)
