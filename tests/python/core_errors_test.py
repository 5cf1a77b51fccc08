# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What is refused and what fails through the native module: the kind of exception, and what it says."""
import errno
import os
import pathlib
import unittest

from core_support import ADAM, MIB, Case, make, numpy, spillway, step, temporary_folder, values


class Arguments(Case):
    def test_names(self):
        one = values(1, 4)
        for words, arguments, keywords in (
            (['"adamw"', '"adam"', '"rmsprop"'], ("adamw",), {}),
            (["groups[0]", '"lr"', "learning_rate", "amsgrad"], ("adam", [{"lr": 1}]), {}),
            (["groups[1]", '"beta1"', "momentum"], ("sgd", [{}, {"beta1": 1}]), {}),
            (["decay", "'l1'", '"decoupled" or "l2"'], ("adam", [{"decay": "l1"}]), {}),
            (["beta1", "1.5"], ("adam", [{"beta1": 1.5}]), {}),
            (['"avx3"', "scalar"], (), {"isa": "avx3"}),
            (["io_backend", '"aio"', '"io_uring"'], (), {"io_backend": "aio"}),
        ):
            self.assert_says(ValueError, words, make, [one], *arguments, **keywords)
        optimizer = make([one])
        optimizer.give_gradient(0, one.copy())
        self.assert_says(ValueError, ["nonfinite", '"ignore"', '"skip"'], optimizer.begin_step, nonfinite="ignore")
        self.assert_says(ValueError, ["group 1", "1, from 0"], optimizer.set_group, 1, {})
        self.assert_says(ValueError, ['"lr"'], optimizer.set_group, 0, {"lr": 1})
        self.assert_says(ValueError, [], optimizer.set_group, 0, {"amsgrad": True})  # needs another plane

    def test_types(self):
        one = values(1, 4)
        for words, group in ((["learning_rate", "'fast'", "number"], {"learning_rate": "fast"}),
                             (["learning_rate", "True"], {"learning_rate": True}),
                             (["amsgrad", "1", "True or False"], {"amsgrad": 1}), (["groups[0]", "dict"], 3)):
            self.assert_says(TypeError, words, make, [one], "adam", [group])
        for item in ("one", ("one", one), (1, one, 0), ("one", one, "0")):
            self.assert_says(TypeError, ["parameters[0]", "(name, array, group)"], spillway.TensorOptimizer, [item],
                             "adam", [ADAM], host_bytes=MIB)
        self.assertRaises(TypeError, spillway.TensorOptimizer, [("one", one, 0)], "adam", [ADAM])
        make([one], "adam", [{"learning_rate": numpy.float32(0.5), "amsgrad": True, "decay": "l2"}])

    def test_parameters_as_a_whole(self):
        one, other = values(1, 4), values(2, 4)
        for items in ([], [("a", one, 0), ("a", other, 0)], [("", one, 0)], [("a", one, 1)]):
            self.assert_says(ValueError, [], spillway.TensorOptimizer, items, "adam", [ADAM], host_bytes=64 * MIB)

    def test_sizes(self):
        self.assertEqual([spillway.parse_bytes(text) for text in ("4GiB", "64MB", "1.5KiB", "4096")],
                         [4 << 30, 64_000_000, 1536, 4096])
        for text in ("", "4 GB", "-1", "1.5", "many"):
            self.assert_says(ValueError, [f'"{text}" is no size', "KiB"], spillway.parse_bytes, text)
        free = spillway.available_host_bytes()
        with open("/proc/meminfo") as meminfo:
            total = next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemTotal"))
        self.assertTrue(0 < free < total - 255 * MIB)


class Order(Case):
    def test_order_of_calls(self):
        gradient = values(2, 4)
        optimizer = make([values(1, 4)])
        optimizer.give_gradient(0, gradient)
        self.assert_says(RuntimeError, ["'0'"], optimizer.give_gradient, 0, gradient)
        self.assert_says(RuntimeError, [], optimizer.end_gradients)
        self.assert_says(RuntimeError, ["out"], optimizer.commit)
        optimizer.begin_step()
        optimizer.wait()
        optimizer.wait()
        optimizer.begin_streamed_step()
        self.assert_says(RuntimeError, [], optimizer.begin_streamed_step)
        self.assert_says(RuntimeError, [], optimizer.begin_step)
        self.assert_says(RuntimeError, [], optimizer.wait)
        optimizer.give_gradient(0, gradient)
        optimizer.end_gradients()
        optimizer.wait()
        self.assertEqual(optimizer.steps(0), 2)


class Places(Case):
    def test_too_little_memory(self):
        weights = values(1, 4 * MIB)
        error = self.assert_says(spillway.Refused, ["bytes"], make, [weights], host_bytes=16 * MIB)
        self.assertIsInstance(error, RuntimeError)
        self.assertEqual(type(error).__module__, "spillway")

    def test_room_is_judged_without_taking_it(self):
        one = [("w", 4 * MIB, "float32", 0)]
        check = spillway.TensorOptimizer.check_room
        with temporary_folder() as folder:
            self.assertIsNone(check(one, "adam", [ADAM], host_bytes=64 * MIB))
            self.assertIsNone(check(one, "adam", [ADAM], host_bytes=16 * MIB, nvme=folder))
            error = self.assert_says(spillway.Refused, ["bytes are needed", str(16 * MIB)], check, one, "adam", [ADAM],
                                     host_bytes=16 * MIB)
            made = self.assert_says(spillway.Refused, [], make, [values(1, 4 * MIB)], host_bytes=16 * MIB)
            self.assertEqual(str(error), str(made))
            self.assert_says(spillway.Refused, [f"disk {os.path.abspath(folder)}", "bytes are needed"], check,
                             [("w", 1 << 40, "bfloat16", 0)], "adam", [ADAM], host_bytes=1 << 36, nvme=folder)
            self.assertEqual(os.listdir(folder), [])
        self.assert_says(ValueError, ["'w' is float16"], check, [("w", 1, "float16", 0)], "adam", [{}], host_bytes=MIB)
        self.assert_says(ValueError, ["betta1"], check, one, "adam", [{"betta1": 1.0}], host_bytes=MIB)

    def test_backends(self):
        self.assertEqual(spillway.io_backends(), ["auto", "io_uring", "libaio", "threads"])
        self.assert_says(ValueError, ["io_backend", '"dma"', *spillway.io_backends()], make, [values(1, 4)],
                         io_backend="dma")
        self.assertEqual(make([values(1, 4)], io_backend="threads").io_backend, "threads")

    def test_folders(self):
        weights = values(1, 4 * MIB)
        with temporary_folder() as folder:
            folder = pathlib.Path(folder)
            plain = folder / "file"
            plain.write_text("not a folder")
            for nvme in (folder / "missing", plain):
                with self.assertRaises((OSError, spillway.Refused, ValueError)) as caught:
                    make([weights], host_bytes=16 * MIB, nvme=nvme)
                self.assertIn(str(nvme), str(caught.exception))
            self.assertRaises((spillway.Refused, OSError), make, [values(1, 4)], out=plain)
            self.assert_says(spillway.Refused, [str(folder)], make, [values(1, 4)], out=folder)  # not empty
            first = make([values(1, 4)], out=folder / "run")
            error = self.assert_says(spillway.Refused, [str(folder / "run"), str(os.getpid())], make,
                                     [values(1, 4)], out=folder / "run")
            del error, first

    def test_errno_crosses(self):
        """The kernel's own word on a file that cannot be opened, as an OSError with its number."""
        with temporary_folder() as folder:
            locked = pathlib.Path(folder) / "a" / "b"
            locked.mkdir(parents=True)
            try:
                make([values(1, 4)], out=f"{folder}/{'n' * 300}")
            except OSError as error:
                self.assertEqual(error.errno, errno.ENAMETOOLONG)
                self.assertIn("nnn", str(error))
            except spillway.Refused as error:
                self.assertIn("nnn", str(error))
            else:
                self.fail("a name of 300 characters was taken")

    def test_damage_on_the_drive_is_found(self):
        weights = values(1, 2 * MIB)
        with temporary_folder() as folder:
            folder = pathlib.Path(folder)
            (folder / "drive").mkdir()
            optimizer = make([weights], nvme=folder / "drive", out=folder / "run", host_bytes=12 * MIB)
            step(optimizer, [values(2, 2 * MIB)])
            extents = [path for path in folder.rglob("extents.*") if path.is_file()]
            self.assertTrue(extents)
            for path in extents:
                with open(path, "r+b") as file:
                    for offset in range(100, path.stat().st_size, 4096):
                        file.seek(offset)
                        file.write(b"\x55" * 8)
                    os.fsync(file.fileno())
            error = self.assert_says(spillway.IntegrityError, ["'0'", "extents"], step, optimizer,
                                     [values(3, 2 * MIB)])
            self.assertIsInstance(error, RuntimeError)
            self.assert_says(spillway.IntegrityError, [], optimizer.wait)  # no further step
            self.assert_says(spillway.IntegrityError, [], optimizer.commit)


class Commits(Case):
    def test_a_commit_brings_everything_back(self):
        expected = [values(1, 100_000), values(2, 3)]
        optimizer = make(expected)
        gradients = [[values(10 * n, 100_000), values(10 * n + 1, 3)] for n in range(4)]
        for each in gradients:
            step(optimizer, each)
        with temporary_folder() as folder:
            weights = [values(1, 100_000), values(2, 3)]
            optimizer = make(weights, out=f"{folder}/run", client_settings='{"model": "small"}')
            self.assertIsNone(optimizer.recover())
            for each in gradients[:2]:
                step(optimizer, each)
            optimizer.commit(iteration=2, client_state="data position 17 \N{GREEK SMALL LETTER MU}")
            step(optimizer, gradients[3])  # lost
            self.assertGreater(optimizer.statistics()["commit_bytes"], 0)
            self.assertEqual(optimizer.statistics()["relocated_bytes"], 0)
            del optimizer
            again = [numpy.zeros_like(w) for w in weights]
            optimizer = make(again, out=f"{folder}/run", client_settings='{"model": "small"}')
            self.assertEqual(optimizer.recover(), (2, "data position 17 \N{GREEK SMALL LETTER MU}"))
            self.assertEqual(optimizer.steps(1), 2)
            for each in gradients[2:]:
                step(optimizer, each)
            for found, right in zip(again, expected):
                self.assert_bits(found, right)
            del optimizer


if __name__ == "__main__":
    unittest.main()
