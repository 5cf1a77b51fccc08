# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What the tests of the native module share. Exit code 77: the package is not installed here."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SKIP = 77
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20

try:
    import numpy
    import spillway
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(SKIP)

try:
    import torch
except ImportError:
    torch = None

needs_torch = unittest.skipIf(torch is None, "torch is not installed")
ADAM = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1}


def temporary_folder():
    """On the file system of the current folder (a disk, unlike a tmpfs /tmp); removed with the object."""
    return tempfile.TemporaryDirectory(dir=".", prefix="spillway-test-")


def make(arrays, optimizer="adam", groups=None, **options):
    """A TensorOptimizer over `arrays` named "0", "1", ..., all of group 0."""
    options.setdefault("host_bytes", 256 * MIB)
    named = [(str(number), array, 0) for number, array in enumerate(arrays)]
    return spillway.TensorOptimizer(named, optimizer, [ADAM] if groups is None else groups, **options)


def step(optimizer, gradients, **rule):
    optimizer.give_gradients(list(range(len(gradients))), list(gradients))
    report = optimizer.begin_step(**rule)
    optimizer.wait()
    return report


def values(seed, *shape):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)


def python(script, *arguments, timeout=60):
    """Runs `script` in a process of its own; its stdout. Any failure, or a word on stderr, is ours."""
    # From 3.12 on Python warns of every fork of a process that has threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if done.returncode or done.stderr:
        raise AssertionError(f"exit {done.returncode}\n{done.stderr}")
    return done.stdout


class Case(unittest.TestCase):
    def assert_says(self, kind, words, call, *arguments, **keywords):
        """`call` raises just `kind`, and its text has every one of `words`."""
        with self.assertRaises(kind) as caught:
            call(*arguments, **keywords)
        self.assertIs(type(caught.exception), kind)
        for word in words:
            self.assertIn(word, str(caught.exception))
        return caught.exception

    def assert_bits(self, one, other):
        self.assertEqual(numpy.asarray(one).tobytes(), numpy.asarray(other).tobytes())
