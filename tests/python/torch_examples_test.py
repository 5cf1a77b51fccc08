# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The examples run as they are written, with their state on a drive, and go on from what they saved."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

from torch_support import drive, unittest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "integrations/python/examples"
MISSING = [name for name in ("transformers", "accelerate") if importlib.util.find_spec(name) is None]


class Examples(unittest.TestCase):
    def run_example(self, name, *arguments):
        done = subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True,
                              timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_plain_loop(self):
        with drive() as nvme, tempfile.TemporaryDirectory() as folder:
            common = ["--nvme", os.path.abspath(nvme), "--checkpoint", f"{folder}/checkpoint.pt"]
            said = self.run_example("plain_loop.py", "--steps", "10", *common)
            self.assertRegex(said, r"step 9: loss [1-4]\.")
            self.assertRegex(said, r"read [1-9]\d* MiB and wrote [1-9]\d* MiB on the drive")
            said = self.run_example("plain_loop.py", "--steps", "12", *common)
            self.assertNotIn("step 0:", said)
            self.assertRegex(said, r"step 11: loss [1-3]\.")

    @unittest.skipIf(MISSING, f"not installed: {MISSING}")
    def test_huggingface_trainer(self):
        with drive() as nvme, tempfile.TemporaryDirectory() as folder:
            common = ["--nvme", os.path.abspath(nvme), "--out", folder]
            self.assertIn("state: ", self.run_example("huggingface_trainer.py", "--steps", "10", *common))
            self.assertTrue(os.path.isdir(f"{folder}/checkpoint-10"))
            self.run_example("huggingface_trainer.py", "--steps", "12", "--resume", *common)


if __name__ == "__main__":
    unittest.main()
