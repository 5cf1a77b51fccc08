#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The storage engine beside other programs on one file of one drive, as medians of ratios from interleaved pairs.

    bench/storage_acceptance.py --dir /mnt/nvme                     against fio and plain calls from huge pages
    bench/storage_acceptance.py --dir /mnt/nvme --peers-python P    also DeepSpeed's aio handle (P has deepspeed)

Every program first moves the file with a few block sizes, depths and kinds of memory, and goes on with its own best.
Then, pair by pair, each makes some passes over the same file (random data) in each direction, one right after the
other in a random order, since a shared drive's speed drifts and what one wrote last slows the next. Several passes,
since a single one lasts a third of a second, of which filling and emptying the queue are some hundredths. Direct I/O
everywhere; nobody flushes; what opening the file and making buffers costs is not counted. Processor time is
compared in longer runs, since fio counts it in milliseconds: each at its own best, and both at fio's best block and
depth, on which it depends far more than on the program. Prints one JSON object.

--peers DIR names the folder of the peer scripts: their own `direct_probe` then runs once a pair too.
"""
import argparse
import itertools
import json
import mmap
import os
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
DIRECTIONS = ("read", "write", "mixed")
CPU_PAIRS = 5
BLOCKS_AND_DEPTHS = list(itertools.product((1 << 20, 4 << 20, 8 << 20), (8, 16, 32)))
MIB = 1 << 20
Settings = dict[str, Any]
Sample = dict[str, float]


def sample(moved: int, wall_s: float, cpu_s: float) -> Sample:
    """One pass as rates."""
    return {"bytes_per_s": moved / wall_s, "cpu_s_per_gb": cpu_s / moved * 1e9}


def run_for_json(command: list[Any], **more: Any) -> Any:
    """What a program prints, parsed; its complaint if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {(done.stderr or done.stdout).strip()[-400:]}")
    return json.loads(done.stdout)


class Spillway:
    """bench/nvme_transfer.cpp: one pass through an IoQueue."""

    name = "spillway"

    def __init__(self, program: pathlib.Path, path: pathlib.Path) -> None:
        self.program, self.path = program, path

    def candidates(self) -> list[Settings]:
        """All of them on huge pages, registered with the kernel; beyond the requests under way none waits in the
        queue, or as many again."""
        return [{"block": block, "depth": depth, "ahead": ahead}
                for block, depth in BLOCKS_AND_DEPTHS for ahead in (0, depth)]

    def run(self, direction: str, settings: Settings, passes: int = 1) -> Sample:
        """So many passes."""
        command = [self.program, self.path, direction, "--passes", passes]
        for name, value in settings.items():
            command += [f"--{name}", value]
        found = run_for_json(command)
        return sample(found["bytes"], found["wall_s"], found["cpu_s"])


class Fio:
    """fio's io_uring engine with registered buffers and files, without the clock calls and data scrambling that
    would cost it processor time."""

    name = "fio"
    RW = {"read": "read", "write": "write", "mixed": "rw"}

    def __init__(self, path: pathlib.Path, size: int) -> None:
        self.path, self.size = path, size

    def candidates(self) -> list[Settings]:
        """`thp`: its own malloc'ed buffers, which the C library asks huge pages for; `mmaphuge` needs reserved ones."""
        memories = ["malloc", "thp"]
        if int(pathlib.Path("/proc/sys/vm/nr_hugepages").read_text()) >= 140:  # 8 MiB x 32, and a little
            memories.append("mmaphuge")
        return [{"block": block, "depth": depth, "memory": memory}
                for block, depth in BLOCKS_AND_DEPTHS for memory in memories]

    def run(self, direction: str, settings: Settings, passes: int = 1) -> Sample:
        """So many passes; rates as fio itself counts them, both directions together."""
        memory = settings["memory"]
        environment = dict(os.environ)
        if memory == "thp":
            memory, environment["GLIBC_TUNABLES"] = "malloc", "glibc.malloc.hugetlb=1"
        command = ["fio", "--name=x", f"--filename={self.path}", f"--size={self.size}", f"--loops={passes}",
                   f"--bs={settings['block']}", f"--rw={self.RW[direction]}", f"--iodepth={settings['depth']}",
                   f"--mem={memory}", "--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1",
                   "--overwrite=1", "--scramble_buffers=0", "--gtod_reduce=1", "--thread", "--output-format=json"]
        job = run_for_json(command, env=environment)["jobs"][0]
        moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
        runtime_s = max(job["read"]["runtime"], job["write"]["runtime"]) / 1e3
        return sample(moved, runtime_s, (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3)


class HugePageCalls:
    """preadv and pwritev from threads, buffers on huge pages: what the drive gives without an engine."""

    name = "huge_page_calls"

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def candidates(self) -> list[Settings]:
        """Threads are its depth."""
        return [{"block": MIB, "depth": 16}, {"block": MIB, "depth": 32}, {"block": 4 * MIB, "depth": 8}]

    def run(self, direction: str, settings: Settings, passes: int = 1) -> Sample:
        """In a process of its own, as the others are."""
        found = run_for_json([sys.executable, __file__, "--calls", json.dumps(
            {"path": str(self.path), "direction": direction, "passes": passes, **settings})])
        return sample(found["bytes"], found["wall_s"], found["cpu_s"])


class DeepSpeed:
    """bench/deepspeed_transfer.py in another Python."""

    name = "deepspeed_aio"

    def __init__(self, python: pathlib.Path, path: pathlib.Path, size: int) -> None:
        self.path, self.size = path, size
        self.process = subprocess.Popen([python, ROOT / "bench" / "deepspeed_transfer.py"], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.answer()

    def candidates(self) -> list[Settings]:
        """As in its own tuning guide: block, depth, and how many threads share a request."""
        return [{"block": block, "depth": depth, "threads": threads} for block, depth, threads in
                itertools.product((MIB, 8 * MIB), (8, 32), (1, 2))]

    def answer(self) -> dict[str, float]:
        """The next line of the process."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise RuntimeError(f"DeepSpeed's process ended with {self.process.wait()}")
        return json.loads(line)

    def run(self, direction: str, settings: Settings, passes: int = 1) -> Sample:
        """So many passes."""
        request = {"path": str(self.path), "direction": direction, "bytes": self.size, "passes": passes, **settings}
        assert self.process.stdin
        print(json.dumps(request), file=self.process.stdin, flush=True)
        found = self.answer()
        return sample(int(found["bytes"]), found["wall_s"], found["cpu_s"])


def make_calls(request: dict[str, Any]) -> None:
    """The body of HugePageCalls: prints bytes, wall and processor seconds of its passes."""
    block, lanes, direction = request["block"], request["depth"], request["direction"]
    descriptor = os.open(request["path"], os.O_RDWR | os.O_DIRECT)
    blocks = os.fstat(descriptor).st_size // block
    area = mmap.mmap(-1, (lanes + 2) * block + 4 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    area[:] = os.urandom(len(area))
    view = memoryview(area)

    def work(lane: int) -> None:
        piece = [view[lane * block:(lane + 1) * block]]
        for number in itertools.chain.from_iterable(itertools.repeat(range(lane, blocks, lanes), request["passes"])):
            writes = direction == "write" or (direction == "mixed" and number % 2 == 1)
            place = number // 2 + (blocks // 2 if writes else 0) if direction == "mixed" else number
            moved = (os.pwritev if writes else os.preadv)(descriptor, piece, place * block)
            if moved != block:
                raise RuntimeError(f"{moved} of {block} bytes moved")

    with ThreadPoolExecutor(lanes) as pool:
        list(pool.map(lambda _: time.sleep(0.01), range(lanes)))  # the threads are there before the clock starts
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.perf_counter()
        list(pool.map(work, range(lanes)))
        wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"bytes": blocks * block * request["passes"], "wall_s": wall_s, "cpu_s": cpu_s}))


def peer_probe(peers: pathlib.Path, folder: pathlib.Path, mebibytes: int) -> dict[str, float]:
    """The peer scripts' own yardstick, on a file of its own."""
    code = f"import sys; sys.path.insert(0, {str(peers)!r}); import common; " \
           f"common.direct_probe({str(folder)!r}, 'pair', {mebibytes})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    huge = [row for row in map(json.loads, done.stdout.splitlines()) if row.get("pages") == "huge"][0]
    return {"read": huge["read_GBps"] * 1e9, "write": huge["write_GBps"] * 1e9}


def best_settings(contender: Any, directions: list[str], loops: int) -> dict[str, Settings]:
    """By the fastest of `loops` passes with each candidate, by direction; of those within 3 % of the fastest,
    which noise tells apart, the one that has asked for the most bytes, since it wakes up least."""
    best = {}
    for direction in directions:
        tried = []
        for settings in contender.candidates():
            rate = max(contender.run(direction, settings)["bytes_per_s"] for _ in range(loops))
            asked = settings["block"] * (settings["depth"] + settings.get("ahead", 0))
            tried.append((asked, rate, settings))
        enough = 0.97 * max(rate for _, rate, _ in tried)
        best[direction] = max((each for each in tried if each[1] >= enough), key=lambda each: each[:2])[2]
        print(f"{contender.name}: best for {direction} is {best[direction]}", file=sys.stderr)
    return best


def summary(pairs: list[dict[str, Any]], direction: str, others: list[str]) -> dict[str, Any]:
    """Medians of one direction."""
    rows = [pair[direction] for pair in pairs]

    def median_ratio(other: str, figure: str) -> float:
        return statistics.median(row["spillway"][figure] / row[other][figure] for row in rows)

    result: dict[str, Any] = {
        "bytes_per_s": {name: statistics.median(row[name]["bytes_per_s"] for row in rows) for name in rows[0]},
        "ratio_to": {other: median_ratio(other, "bytes_per_s") for other in others}}
    yardsticks = [result["ratio_to"][name] for name in ("fio", "huge_page_calls") if name in others]
    result["ratio_to_better_yardstick"] = min(yardsticks)
    return result


def compare_cpu(engine: Spillway, fio: Fio, settings: dict[str, dict[str, Settings]], directions: list[str],
                passes: int) -> dict[str, Any]:
    """Processor seconds per GB of both in interleaved runs."""
    result: dict[str, Any] = {}
    for direction in directions:
        own, fios = settings[engine.name][direction], settings[fio.name][direction]
        same = {"block": fios["block"], "depth": fios["depth"], "ahead": fios["depth"]}
        rows = [{"own": engine.run(direction, own, passes)["cpu_s_per_gb"],
                 "at_fios": engine.run(direction, same, passes)["cpu_s_per_gb"],
                 "fio": fio.run(direction, fios, passes)["cpu_s_per_gb"]} for _ in range(CPU_PAIRS)]
        result[direction] = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for name in ("own", "at_fios"):
            result[direction][f"{name}_to_fio"] = statistics.median(row[name] / row["fio"] for row in rows)
        result[direction]["raw"] = rows
    return result


def measure(options: argparse.Namespace, folder: pathlib.Path) -> dict[str, Any]:
    """The whole run, in a folder that the caller removes."""
    size, path, notes = options.mib * MIB, folder / "data", []
    with open(path, "wb") as file:
        for _ in range(options.mib):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    engine, fio = Spillway(options.program, path), Fio(path, size)
    contenders: list[Any] = [engine]
    if shutil.which("fio"):
        contenders.append(fio)
    else:
        notes.append("fio is not installed: there is no ratio to it")
    contenders.append(HugePageCalls(path))
    if options.peers_python:
        contenders.append(DeepSpeed(options.peers_python, path, size))
    settings = {each.name: best_settings(each, options.only, options.sweep_loops) for each in contenders}
    pairs, order = [], random.Random(options.seed)
    for number in range(options.pairs):
        pair: dict[str, Any] = {direction: {} for direction in options.only}
        for direction in options.only:
            for each in order.sample(contenders, len(contenders)):
                pair[direction][each.name] = each.run(direction, settings[each.name][direction], options.passes)
        if options.peers:
            for direction, rate in peer_probe(options.peers, folder, options.mib).items():
                if direction in pair:
                    pair[direction]["peers_direct_io"] = {"bytes_per_s": rate}
        pairs.append(pair)
        print(f"pair {number + 1} of {options.pairs}", file=sys.stderr)
    cpu = compare_cpu(engine, fio, settings, options.only, options.cpu_passes) if fio in contenders else None
    results = {direction: summary(pairs, direction, [n for n in pairs[0][direction] if n != "spillway"])
               for direction in options.only}
    return {"file_bytes": size, "pairs": options.pairs, "passes": options.passes,
            "load1_at_end": os.getloadavg()[0], "notes": notes,
            "settings": settings, "results": results, "cpu_s_per_gb": cpu, "raw": pairs}


def main() -> None:
    """Parses, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path.cwd(), help="folder on the drive to measure")
    parser.add_argument("--mib", type=int, default=512, help="of the file; at least 256")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--passes", type=int, default=4, help="of each program over the file in a pair")
    parser.add_argument("--only", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    parser.add_argument("--sweep-loops", type=int, default=3, help="passes with each candidate before the pairs")
    parser.add_argument("--seed", type=int, default=1, help="of the order within the pairs")
    parser.add_argument("--cpu-passes", type=int, default=8, help="of a run that compares processor time")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "release" / "nvme_transfer")
    parser.add_argument("--peers", type=pathlib.Path, help="folder of the peer scripts (common.py)")
    parser.add_argument("--peers-python", type=pathlib.Path, help="a Python with torch and deepspeed")
    parser.add_argument("--calls", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.calls:
        make_calls(json.loads(options.calls))
        return
    if options.mib < 256 or options.mib % 8 or options.pairs < 1:
        parser.error("--mib must be a multiple of 8 from 256 on, --pairs at least 1")
    if not options.program.is_file():
        parser.error(f"{options.program} is not built: cmake --build build/release --target nvme_transfer")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="spillway.acceptance.", dir=options.dir))
    try:
        print(json.dumps(measure(options, folder), indent=1))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
