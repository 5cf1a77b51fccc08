# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""One bit pattern, wherever the state lies and however the update is cut, timed and interrupted."""
import io
import os

from torch_support import CASES, ROWS, budgets, drive, groups, make, model, same_bits, st, torch, train, unittest

STEPS = 3
# What a dtype changes is the same for all optimizers.
CASES_OF_DTYPES = ((torch.float32, CASES), (torch.bfloat16, CASES[::3]))


def trained(name, arguments, dtype=torch.float32, steps=STEPS, micro_batches=2, **offload):
    net = model(dtype=dtype, rows=ROWS)
    optimizer = make(st, name, net, arguments, **offload)
    train(net, optimizer, steps, micro_batches=micro_batches)
    return net, optimizer


class OneBitPattern(unittest.TestCase):
    def test_memory_and_drive(self):
        for dtype, cases in CASES_OF_DTYPES:
            for name, arguments in cases:
                expected, first = trained(name, arguments, dtype)
                with drive() as folder:
                    for budget in (*budgets(name, arguments, folder, dtype), 1 << 30):
                        with self.subTest(name=name, dtype=dtype, budget=budget, **arguments):
                            found, second = trained(name, arguments, dtype, nvme=folder, host_mem=budget)
                            self.assertEqual(same_bits(found, expected), [])
                            self.assert_same_state(first, second)
                        del second
                    self.assertEqual(leftovers(folder), [])

    def assert_same_state(self, first, second):
        a, b = first.state_dict()["state"], second.state_dict()["state"]
        self.assertEqual(a.keys(), b.keys())
        for key in a:
            self.assertEqual(a[key].keys(), b[key].keys())
            for name in a[key]:
                self.assertTrue(torch.equal(a[key][name], b[key][name]), (key, name))

    def test_the_drive_is_really_used(self):
        with drive() as folder:
            least, half = budgets("AdamW", {}, folder)
            found = trained("AdamW", {}, nvme=folder, host_mem=least)[1].statistics()
            self.assertGreater(found["nvme_read_bytes"], 0)
            self.assertGreater(found["nvme_written_bytes"], 0)
            self.assertEqual(found["resident_state_bytes"], 0)
            self.assertLessEqual(found["host_bytes"], least)
            found = trained("AdamW", {}, nvme=folder, host_mem=half)[1].statistics()
            self.assertGreater(found["resident_state_bytes"], found["state_bytes"] // 4)
            self.assertLess(found["resident_state_bytes"], found["state_bytes"])
            self.assertLessEqual(found["host_bytes"], half)

    def test_overlap_chunks_threads_and_instruction_sets(self):
        ways = [{"overlap": "forward"}, {"overlap": "backward"}, {"threads": 1}, {"threads": 2}, {"isa": "scalar"},
                {"chunk_size": "64KiB"}, {"chunk_size": "256KiB", "threads": 2}]
        for name, arguments in (CASES[0], CASES[4], CASES[8]):
            for dtype in (torch.float32, torch.bfloat16):
                expected, _ = trained(name, arguments, dtype)
                with drive() as folder:
                    half = budgets(name, arguments, folder, dtype)[1]
                    for way in ways:
                        with self.subTest(name=name, dtype=dtype, **way):
                            found, _ = trained(name, arguments, dtype, nvme=folder, host_mem=half, **way)
                            self.assertEqual(same_bits(found, expected), [])

    def test_io_backends(self):
        expected, _ = trained("AdamW", {})
        with drive() as folder:
            half = budgets("AdamW", {}, folder)[1]
            for backend in ("io_uring", "threads"):
                with self.subTest(backend=backend):
                    try:
                        found, _ = trained("AdamW", {}, nvme=folder, host_mem=half, io_backend=backend)
                    except OSError as error:
                        self.skipTest(f"{backend} is not to be had here: {error}")
                    self.assertEqual(same_bits(found, expected), [])

    def test_clipping_inside_and_skipping(self):
        def run(**offload):
            net = model(rows=ROWS)
            optimizer = st.AdamW(groups(net), lr=3e-3, max_grad_norm=0.1, nonfinite="skip", **offload)

            def spoil(step):
                if step == 2:
                    net.gain.grad.fill_(float("inf"))

            with self.assertWarnsRegex(RuntimeWarning, "step skipped"):
                train(net, optimizer, STEPS, before_step=spoil)
            self.assertEqual(optimizer.skipped_steps, 1)
            self.assertEqual(float(optimizer.state[net.gain]["step"]), STEPS - 1)
            return net

        expected = run()
        with drive() as folder:
            half = budgets("AdamW", {}, folder)[1]
            ways = ({"nvme": folder, "host_mem": half}, {"overlap": "forward"}, {"threads": 1, "isa": "scalar"})
            for offload in ways:
                with self.subTest(**offload):
                    self.assertEqual(same_bits(run(**offload), expected), [])

    def test_interrupted_equals_uninterrupted(self):
        """Stopped after 3 steps, saved with torch.save, loaded into another process's worth of new objects."""
        for dtype, cases in CASES_OF_DTYPES:
            for name, arguments in cases:
                with self.subTest(name=name, dtype=dtype, **arguments), drive() as folder:
                    half = budgets(name, arguments, folder, dtype)[1]
                    expected, _ = trained(name, arguments, dtype, steps=5, micro_batches=1)
                    net, optimizer = trained(name, arguments, dtype, steps=3, micro_batches=1, nvme=folder,
                                             host_mem=half)
                    file = io.BytesIO()
                    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
                    del net, optimizer
                    file.seek(0)
                    saved = torch.load(file, weights_only=True)
                    for offload in ({}, {"nvme": folder, "host_mem": half}):
                        for weights_first in (True, False):
                            net = model(seed=9, dtype=dtype, rows=ROWS)
                            optimizer = make(st, name, net, {**arguments, "lr": 1.0}, **offload)
                            loads = [lambda: net.load_state_dict(saved["model"]),
                                     lambda: optimizer.load_state_dict(saved["optimizer"])]
                            for load in loads if weights_first else reversed(loads):
                                load()
                            train(net, optimizer, 2, first=3)
                            self.assertEqual(same_bits(net, expected), [], (offload, weights_first))


def leftovers(folder):
    return [name for _, _, names in os.walk(folder) for name in names]


if __name__ == "__main__":
    unittest.main()
