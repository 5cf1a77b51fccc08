# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""How a run spreads over two drives of different speed, and what they give together.

    several_drives.py [FAST_MB_PER_S SLOW_MB_PER_S]       default 200 and 80; needs root; exit code 77: not here

Two loop disks are throttled by the kernel (cgroup v1, blkio), reads and writes alike. A training run keeps its state on
them; then `inspect` reads all of it. Prints one JSON object: for each drive its share of the state and what it was
allowed; the bytes that `inspect` checked in a second, and that the run's updates read in a second, each as a part of
what both drives together are allowed. An update also writes as much as it reads, and begins and ends with pieces that
only one drive moves, so its part grows with the state.
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


def run(procs, *arguments):
    """The program inside the cgroup; its JSON."""
    program = os.environ.get("SPILLWAY", str(ROOT / "build" / "release" / "spillway"))
    command = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(procs), program, *map(str, arguments), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{arguments[0]} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout)


def train(nvme, top, procs):
    """Enough steps for the shares to settle; all weights and gradients in RAM, all state on the drives."""
    return run(procs, "train", "--model", "gpt2:8x640x10", "--data", ROOT / "engine" / "data" / "kjv.txt", "--batch", "1",
               "--seq", "32", "--context", "32", "--eval-sequences", "0", "--probe", "off", "--host-mem", "600MiB",
               "--chunk-size", "1MiB", "--steps", "20", "--commit-every", "2", "--nvme", nvme, "--out", top / "run")


def main():
    allowed = [int(float(text) * 1e6) for text in sys.argv[1:3]] or [200_000_000, 80_000_000]
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
        checked = run(procs, "inspect", top / "run")
    print(json.dumps({
        "allowed_bytes_per_s": allowed,
        "drives": [{"share": drive["share"], "share_by_rate": rate / sum(allowed)}
                   for drive, rate in zip(result["drives"], allowed)],
        "moved_regions": result["moved_regions"],
        "inspect_read_attained": checked["bytes_checked"] / checked["verify_s"] / sum(allowed),
        "update_read_attained": result["bytes"]["nvme_read"] / result["phase_s"]["optimizer"] / sum(allowed),
        "stall_s": result["stall_s"],
    }, indent=2))


main()
