# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The native module among threads, signals, forks and the interpreter's end."""
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

from core_support import (Case, make, needs_torch, numpy, python, spillway, step, temporary_folder, torch,
                          values)

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


class Interrupts(Case):
    """Ctrl-C, by a timer, in calls that are long before any update runs."""

    # Tells a call that stops from one that hangs, on a machine as busy as it may be.
    PROMPT_S = 10.0

    def interrupt(self, call, after_s=0.02):
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        began = time.monotonic()
        try:
            with self.assertRaises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, after_s)
                call()
                # The call was faster than the signal, or than the thread it reached: any thread may take it, and then
                # it cuts no sleep short.
                while time.monotonic() - began < self.PROMPT_S:
                    time.sleep(0.001)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertLess(time.monotonic() - began, after_s + self.PROMPT_S)

    def resident_bytes(self):
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def test_taking_memory(self):
        if spillway.available_host_bytes() < 3 << 30:
            self.skipTest("3 GiB of memory are needed")
        weights = numpy.zeros(1 << 28, numpy.float32)  # 2 GiB of moments
        before, threads = self.resident_bytes(), len(os.listdir("/proc/self/task"))
        self.interrupt(lambda: make([weights], host_bytes=5 << 29))
        array = values(1, 1000)
        step(make([array]), [values(2, 1000)])  # waits until the memory is free again
        self.assertLess(self.resident_bytes(), before + (1 << 29))
        self.assertLessEqual(len(os.listdir("/proc/self/task")), threads + len(os.sched_getaffinity(0)))

    def test_taking_memory_in_a_process_that_ends(self):
        python("import numpy, os, signal, spillway\n"
               "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
               "signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
               "weights = numpy.zeros(1 << 27, numpy.float32)\n"
               "try:\n"
               "    spillway.TensorOptimizer([('w', weights, 0)], 'adam', [{}], host_bytes=5 << 28)\n"
               "    signal.pause()\n"
               "except KeyboardInterrupt:\n"
               "    pass\n"
               "if os.fork() == 0:\n"
               "    spillway.TensorOptimizer([('w', weights[:9], 0)], 'adam', [{}], host_bytes=1 << 26)\n"
               "    os._exit(0)\n"
               "assert os.wait()[1] == 0\n")

    def test_taking_room_on_the_drive(self):
        weights = numpy.zeros(1 << 26, numpy.float32)
        for after_s in (1e-5, 0.001, 0.004, 0.015):
            with temporary_folder() as nvme, temporary_folder() as out:
                options = {"host_bytes": 64 << 20, "nvme": nvme, "out": os.path.join(out, "run")}
                self.interrupt(lambda: make([weights], nvme=nvme, host_bytes=64 << 20), after_s)
                self.interrupt(lambda: make([weights], **options), after_s)
                optimizer = make([weights], **options)
                self.assertIsNone(optimizer.recover())
                self.assertEqual(os.listdir(nvme), ["spillway.extents"])
                self.assertEqual(len(os.listdir(os.path.join(nvme, "spillway.extents"))), 1)
                del optimizer

    def test_looking_at_gradients(self):
        arrays = [numpy.zeros(1 << 24, numpy.float32) for _ in range(12)]
        gradient = values(3, 1 << 24)
        optimizer = make(arrays, "sgd", [{"learning_rate": 1.0}], **SLOW)
        optimizer.give_gradients(list(range(12)), [gradient] * 12)
        self.interrupt(lambda: optimizer.begin_step(max_norm=1.0), 0.01)
        optimizer.wait()
        self.assertEqual(optimizer.steps(0), 0)
        self.assertEqual(max(float(abs(array[::4096]).max()) for array in arrays), 0.0)
        with self.assertRaisesRegex(RuntimeError, "was given before"):  # it is still there
            optimizer.give_gradient(0, gradient)
        report = optimizer.begin_step(max_norm=1.0)
        optimizer.wait()
        self.assertEqual(optimizer.steps(0), 1)
        norm = (12 * float((gradient.astype(numpy.float64) ** 2).sum())) ** 0.5
        self.assertAlmostEqual(report.norm / norm, 1.0, places=6)
        numpy.testing.assert_allclose(arrays[11], -gradient / norm, rtol=1e-5)

    def test_copying_state(self):
        count = (1 << 25) + 3  # more than is copied at a time
        optimizer = make([numpy.zeros(count, numpy.float32)], host_bytes=1 << 29)
        written, found = values(1, count), numpy.zeros(count, numpy.float32)
        optimizer.write_state(0, 1, 0, written)
        optimizer.read_state(0, 1, 0, found)
        self.assert_bits(found, written)
        for call, array in ((optimizer.read_state, found), (optimizer.write_state, written)):
            with self.assertRaisesRegex(ValueError, f"it has {count}"):
                call(0, 1, 1, array)
        self.assert_bits(found, written)

    def test_recovering(self):
        count = 1 << 25
        with temporary_folder() as out:
            weights = values(1, count)
            optimizer = make([weights], host_bytes=1 << 30, out=out)
            step(optimizer, [values(2, count)])
            optimizer.commit(7, "a note")
            del optimizer
            found = numpy.zeros(count, numpy.float32)
            optimizer = make([found], host_bytes=1 << 30, out=out)
            self.interrupt(optimizer.recover, 0.01)
            self.assertEqual(optimizer.recover(), (7, "a note"))
            self.assert_bits(found, weights)
            self.assertEqual(optimizer.steps(0), 1)
            del optimizer
            optimizer = make([found], host_bytes=1 << 30, out=out)
            self.interrupt(optimizer.recover, 0.01)
            self.assertEqual(optimizer.steps(0), 1)  # waits for it
            del optimizer
            optimizer = make([found], host_bytes=1 << 30, out=out)
            self.interrupt(optimizer.recover, 0.01)
            del optimizer  # waits, too
            step(make([found], host_bytes=1 << 30), [values(2, count)])


class Forks(Case):
    def test_every_call_in_a_child_is_refused(self):
        array = values(2, 1000)
        calls = {
            "set_group": (0, {}), "rebind": (0, array), "give_gradient": (0, array), "give_gradients": ([0], [array]),
            "discard_gradients": (), "begin_step": (), "begin_streamed_step": (), "end_gradients": (),
            "wait_for": (0,), "wait": (), "recover": (), "commit": (), "steps": (0,), "set_steps": (0, 1),
            "read_state": (0, 0, 0, array), "write_state": (0, 0, 0, array), "state_view": (0, 0),
            "read_masters": (0, 0, array), "reset_residue": (0,), "read_residue": (0, 0, array.view("int16")[:1000]),
            "write_residue": (0, 0, array.view("int16")[:1000]), "statistics": (), "read_average": (0, 0, array),
            "write_average": (0, 0, array), "factors": (0,), "read_factors": (0, 0, array), "write_factors": (0, 0, array),
        }
        optimizer = make([values(1, 1000)])
        public = {name for name in dir(optimizer) if not name.startswith("_")} - {"check_room"}  # of no object
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
