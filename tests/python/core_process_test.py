# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The native module among threads, signals, forks and the interpreter's end."""
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

from core_support import Case, make, needs_torch, python, step, torch, values

# A step that takes some tenths of a second: one thread, no vectors.
SLOW = {"isa": "scalar", "threads": 1}
SLOW_ELEMENTS = 8_000_000

INTERRUPTED = """
import sys, time, numpy, spillway
weights = numpy.ones(int(sys.argv[1]), numpy.float32)
optimizer = spillway.TensorOptimizer([("w", weights, 0)], "adam", [{}], host_bytes=1 << 30, isa="scalar", threads=1)
optimizer.give_gradient(0, weights.copy())
optimizer.begin_step()
try:
    print("waiting", flush=True)
    getattr(optimizer, sys.argv[2])(*map(int, sys.argv[3:]))
except KeyboardInterrupt:
    began = time.monotonic()
    optimizer.wait()
    print("interrupted", "early" if time.monotonic() - began > 0.02 else "late")
optimizer.give_gradient(0, weights.copy())
optimizer.begin_step()
optimizer.wait()
print(optimizer.steps(0), float(weights.min()), float(weights.max()))
"""

# Interpreters that end with an update in flight; the object dies early, late or never.
ENDINGS = {
    "a global": "pass",
    "never deleted": "import builtins; builtins.kept = optimizer",
    "in a cycle": "import gc; gc.disable(); cycle = [optimizer]; cycle.append(cycle)",
    "held by its view": "view = optimizer.state_view(0, 0); del optimizer",
    "sys.exit": "raise SystemExit(0)",
    "in a thread": "import threading; threading.Thread(target=optimizer.wait, daemon=True).start()",
    "in many threads": "import threading\n"
                       "def ask():\n"
                       "    while True: optimizer.wait(), optimizer.statistics(), optimizer.steps(0)\n"
                       "for _ in range(6): threading.Thread(target=ask, daemon=True).start()",
    "training in a thread": "import threading\n"
                            "def train():\n"
                            "    while True:\n"
                            "        optimizer.wait()\n"
                            "        optimizer.give_gradient(0, weights.copy())\n"
                            "        optimizer.begin_step()\n"
                            "threading.Thread(target=train, daemon=True).start()",
    "never ended": "optimizer.wait(); optimizer.begin_streamed_step()",
    "streaming": "optimizer.wait(); optimizer.begin_streamed_step(); optimizer.give_gradient(0, weights.copy())",
}
ENDING = """
import numpy, spillway
weights = numpy.ones(3_000_000, numpy.float32)
optimizer = spillway.TensorOptimizer([("w", weights, 0)], "adam", [{}], host_bytes=1 << 28, isa="scalar", threads=1)
optimizer.give_gradient(0, weights.copy())
optimizer.begin_step()
"""


def in_child(action, timeout_s=20):
    """Forks; runs `action` there; its text, or a failure when the child does not come to an end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        text, code = "", 1
        try:
            text, code = str(action()), 0
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, text.encode()[:4000])
            os._exit(code)
    os.close(writer)
    deadline = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the forked child hangs")
        time.sleep(0.01)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    if status:
        raise AssertionError(f"the forked child ended with {status}: {text}")
    return text


class Threads(Case):
    def test_waiting_leaves_the_interpreter_to_others(self):
        optimizer = make([values(1, SLOW_ELEMENTS)], host_bytes=1 << 30, **SLOW)
        count, stop = [0], threading.Event()

        def work():
            while not stop.is_set():
                count[0] += 1
                time.sleep(0.001)

        interval = sys.getswitchinterval()
        # Nobody is made to give the interpreter up: others run only when it is given up freely.
        sys.setswitchinterval(1000)
        worker = threading.Thread(target=work)
        try:
            worker.start()
            optimizer.give_gradient(0, values(2, SLOW_ELEMENTS))
            optimizer.begin_step()
            before = count[0]
            optimizer.wait()
            during = count[0] - before
        finally:
            stop.set()
            sys.setswitchinterval(interval)
            worker.join()
        self.assertGreater(during, 5)

    def test_gradients_from_many_threads(self):
        one, other = [values(n, 1000) for n in range(64)], [values(n, 1000) for n in range(64)]
        gradients = [values(100 + n, 1000) for n in range(64)]
        step(make(one), gradients)
        for streamed in (False, True):
            weights = [w.copy() for w in other]
            optimizer = make(weights)
            if streamed:
                optimizer.begin_streamed_step()
            threads = [threading.Thread(target=lambda first=first: [
                optimizer.give_gradient(n, gradients[n]) for n in range(first, 64, 8)]) for first in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            optimizer.end_gradients() if streamed else optimizer.begin_step()
            optimizer.wait()
            for found, expected in zip(weights, one):
                self.assert_bits(found, expected)

    def test_calls_of_several_threads_take_turns(self):
        optimizer = make([values(1, 2_000_000)], **SLOW)
        failures = []

        def ask():
            try:
                for _ in range(50):
                    optimizer.statistics()
                    optimizer.wait()
                    optimizer.steps(0)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(5):
            step(optimizer, [values(number, 2_000_000)])
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(optimizer.steps(0), 5)


class Signals(Case):
    def test_ctrl_c_stops_the_wait_and_not_the_update(self):
        undisturbed = python(INTERRUPTED, 1000, "wait").split()[-2:]
        for call in (["wait"], ["begin_step"], ["steps", "0"]):
            child = subprocess.Popen([sys.executable, "-c", INTERRUPTED, str(2 * SLOW_ELEMENTS), *call],
                                     stdout=subprocess.PIPE, text=True)
            try:
                self.assertEqual(child.stdout.readline(), "waiting\n")
                child.send_signal(signal.SIGINT)
                rest = child.communicate(timeout=60)[0].split()
            finally:
                child.kill()
            self.assertEqual(child.returncode, 0)
            self.assertEqual(rest, ["interrupted", "early", "2", *undisturbed])

    def test_a_handler_may_use_the_optimizer(self):
        optimizer = make([values(1, SLOW_ELEMENTS)], host_bytes=1 << 30, **SLOW)
        seen = []
        before = signal.signal(signal.SIGALRM, lambda *_: seen.append(optimizer.statistics()["state_bytes"]))
        try:
            optimizer.give_gradient(0, values(2, SLOW_ELEMENTS))
            optimizer.begin_step()
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            optimizer.wait()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertEqual(len(seen), 1)
        self.assertGreaterEqual(seen[0], 8 * SLOW_ELEMENTS)


class Forks(Case):
    def test_every_call_in_a_child_is_refused(self):
        array = values(2, 1000)
        calls = {
            "set_group": (0, {}), "rebind": (0, array), "give_gradient": (0, array), "give_gradients": ([0], [array]),
            "discard_gradients": (), "begin_step": (), "begin_streamed_step": (), "end_gradients": (),
            "wait_for": (0,), "wait": (), "recover": (), "commit": (), "steps": (0,), "set_steps": (0, 1),
            "read_state": (0, 0, 0, array), "write_state": (0, 0, 0, array), "state_view": (0, 0),
            "read_masters": (0, 0, array), "reset_residue": (0,), "read_residue": (0, 0, array.view("int16")[:1000]),
            "write_residue": (0, 0, array.view("int16")[:1000]), "statistics": (),
        }
        optimizer = make([values(1, 1000)])
        public = {name for name in dir(optimizer) if not name.startswith("_")}
        self.assertEqual(public, {*calls, "state_planes", "io_backend"})

        def use():
            for name in sorted(public):
                try:
                    getattr(optimizer, name)(*calls[name])
                except RuntimeError as error:
                    assert "forked" in str(error) and str(os.getppid()) in str(error), (name, error)
                else:
                    raise AssertionError(f"{name} was let through")
            return "refused"

        self.assertEqual(in_child(use), "refused")
        step(optimizer, [array])
        self.assertEqual(optimizer.steps(0), 1)

    def test_a_child_forgets_it_in_mid_update(self):
        expected = values(1, 3_000_000)
        step(make([expected]), [values(2, 3_000_000)])
        held = {"optimizer": make([values(1, 3_000_000)], **SLOW)}
        weights = values(1, 3_000_000)
        held["optimizer"].rebind(0, weights)
        held["optimizer"].give_gradient(0, values(2, 3_000_000))
        held["optimizer"].begin_step()
        self.assertEqual(in_child(lambda: held.clear() or "gone"), "gone")
        held["optimizer"].wait()
        self.assert_bits(weights, expected)

    def test_a_child_makes_its_own(self):
        kept = make([values(1, 1000)])
        expected = values(1, 1000)
        step(make([expected]), [values(2, 1000)])

        def train():
            weights = values(1, 1000)
            step(make([weights]), [values(2, 1000)])
            return weights.tobytes() == expected.tobytes()

        self.assertEqual(in_child(train), "True")
        step(kept, [values(2, 1000)])

    def test_a_child_that_ends_as_python_does(self):
        python(ENDING + "import os\nchild = os.fork()\nif child:\n"
               "    status = os.waitpid(child, 0)[1]\n    optimizer.wait()\n    assert status == 0, status\n")

    @needs_torch
    def test_data_loader_workers(self):
        optimizer = make([values(1, 1_000_000)], **SLOW)

        class Squares(torch.utils.data.Dataset):
            used_by = optimizer

            def __len__(self):
                return 12

            def __getitem__(self, index):
                return index * index

        optimizer.give_gradient(0, values(2, 1_000_000))
        optimizer.begin_step()
        loader = torch.utils.data.DataLoader(Squares(), batch_size=3, num_workers=2, multiprocessing_context="fork")
        self.assertEqual(sum(int(batch.sum()) for batch in loader), sum(n * n for n in range(12)))
        optimizer.wait()
        self.assertEqual(optimizer.steps(0), 1)


class Endings(Case):
    def test_the_interpreter_ends_in_mid_update(self):
        for name, ending in ENDINGS.items():
            with self.subTest(name):
                python(ENDING + ending)


if __name__ == "__main__":
    unittest.main()
