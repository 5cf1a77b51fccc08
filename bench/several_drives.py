# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""How a run spreads over two drives of different speed, and what they give together.

    several_drives.py [FAST_MB_PER_S SLOW_MB_PER_S]       default 120 and 40; needs root; exit code 77: not here

Two loop disks are throttled by the kernel (cgroup v1, blkio), reads and writes alike. A training run keeps its state on
them. Printed for each drive: its share of the state, the rate it was allowed, the rate it gave while it was busy; and the
bytes that both read and wrote while the update ran, beside the sum of what is allowed.
"""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
DISK_BYTES = 1 << 30


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def call(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def loop_disk(folder, name):
    """A file system on a loop device that does direct I/O; gives its folder and its device."""
    image, mount = folder / f"{name}.img", folder / name
    with open(image, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, DISK_BYTES)
    device = call("losetup", "--find", "--show", "--direct-io=on", image)
    try:
        call("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        mount.mkdir()
        call("mount", device, mount)
        try:
            yield mount, device
        finally:
            call("umount", mount)
    finally:
        call("losetup", "--detach", device)


@contextlib.contextmanager
def throttled(limits):
    """A cgroup in which each device moves so many bytes per second each way; gives its procs file."""
    group = BLKIO / f"spillway-{os.getpid()}"
    group.mkdir()
    try:
        for device, limit in limits.items():
            number = os.stat(device).st_rdev
            for way in ("read", "write"):
                (group / f"blkio.throttle.{way}_bps_device").write_text(
                    f"{os.major(number)}:{os.minor(number)} {limit}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def train(nvme, top, procs):
    program = os.environ.get("SPILLWAY", str(ROOT / "build" / "release" / "spillway"))
    command = [program, "train", "--model", "gpt2:6x512x8", "--data", str(ROOT / "engine" / "data" / "kjv.txt"),
               "--batch", "1", "--seq", "32", "--context", "32", "--eval-sequences", "0", "--probe", "off",
               "--host-mem", "160MiB", "--steps", "12", "--commit-every", "2", "--nvme", nvme, "--out", str(top / "run"),
               "--json", "-"]
    process = subprocess.Popen(["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(procs), *command], stdout=subprocess.PIPE)
    out, _ = process.communicate()
    if process.returncode != 0:
        sys.exit(f"the run ended with {process.returncode}")
    return json.loads(out)


def main():
    allowed = [int(float(text) * 1e6) for text in sys.argv[1:3]] or [120_000_000, 40_000_000]
    if os.geteuid() != 0:
        skip("loop devices and cgroups need root")
    if not (BLKIO / "blkio.throttle.read_bps_device").exists() and not (BLKIO / "cgroup.procs").exists():
        skip("there is no blkio cgroup (version 1) here")
    with contextlib.ExitStack() as stack:
        top = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir=os.getcwd())))
        try:
            disks = [stack.enter_context(loop_disk(top, name)) for name in ("fast", "slow")]
            procs = stack.enter_context(throttled({device: rate for (_, device), rate in zip(disks, allowed)}))
        except (subprocess.CalledProcessError, OSError) as error:
            skip(f"no throttled loop disks here: {error}")
        result = train(",".join(str(mount) for mount, _ in disks), top, procs)
    for drive, rate in zip(result["drives"], allowed):
        print(f"{drive['extents'].split('/')[-3]}: {100 * drive['share']:.0f} % of the state, read at "
              f"{drive['read_bytes_per_s'] / 1e6:.0f} and written at {drive['write_bytes_per_s'] / 1e6:.0f} MB/s of "
              f"{rate / 1e6:.0f} MB/s allowed")
    read = sum(drive["read_bytes_per_s"] for drive in result["drives"])
    update_s = result["phase_s"]["optimizer"]
    read_alone = result["bytes"]["nvme_read"] / update_s
    print(f"{result['moved_regions']} copies of regions moved; fast share by rate would be "
          f"{100 * allowed[0] / sum(allowed):.0f} %")
    print(f"read while busy: {read / sum(allowed):.2f} of the sum allowed; read per second of update: "
          f"{read_alone / sum(allowed):.2f} of the sum")


main()
