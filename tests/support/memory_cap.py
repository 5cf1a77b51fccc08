# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""A limit on the memory of a test's programs."""
import os
import pathlib
import subprocess


class MemoryCap:
    """A memory cgroup (v2 or v1) that processes can be put in; `enter` is None where none can be made."""

    def __init__(self, limit_bytes, scratch):
        self.enter = self.folder = self.mount = None
        for base, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            if self.make(pathlib.Path(base), limit, limit_bytes):
                return
        # As root, version 1 can be mounted where nothing else has the controller.
        mount = pathlib.Path(scratch) / "cgroup"
        mount.mkdir()
        if subprocess.run(["mount", "-t", "cgroup", "-o", "memory", "none", mount], capture_output=True).returncode == 0:
            self.mount = mount
            self.make(mount, "memory.limit_in_bytes", limit_bytes)

    def make(self, base, limit, limit_bytes):
        folder = base / f"spillway-cap-{os.getpid()}"
        try:
            folder.mkdir()
            if (folder / limit).exists() and (folder / "cgroup.procs").exists():
                (folder / limit).write_text(str(limit_bytes))
                self.folder, self.enter = folder, lambda: (folder / "cgroup.procs").write_text(str(os.getpid()))
                return True
            folder.rmdir()
        except OSError:
            pass
        return False

    def close(self):
        if self.folder:
            self.folder.rmdir()
        if self.mount:
            subprocess.run(["umount", self.mount], check=True)
