# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Steps through the native module: the numbers against AdamW in double, and every way to give gradients."""
import unittest

from core_support import ADAM, MIB, Case, make, needs_torch, numpy, spillway, step, temporary_folder, torch, values

SHAPES = [(), (1,), (37, 11), (70_000,), (0, 4)]


class ReferenceAdamW:
    """Loshchilov & Hutter 2019, Algorithm 2, in double."""

    def __init__(self, weights):
        self.w = numpy.asarray(weights, numpy.float64)
        self.m, self.v, self.t = numpy.zeros_like(self.w), numpy.zeros_like(self.w), 0

    def step(self, gradient, lr=ADAM["learning_rate"], scale=1.0):
        g = numpy.asarray(gradient, numpy.float64) * scale
        beta1, beta2 = ADAM["beta1"], ADAM["beta2"]
        self.t += 1
        self.w = self.w * (1 - lr * ADAM["weight_decay"])
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g * g
        m_hat, v_hat = self.m / (1 - beta1**self.t), self.v / (1 - beta2**self.t)
        self.w = self.w - lr * m_hat / (numpy.sqrt(v_hat) + ADAM["epsilon"])


def relative(found, expected):
    expected = numpy.asarray(expected, numpy.float64)
    return numpy.linalg.norm((found - expected).ravel()) / max(numpy.linalg.norm(expected.ravel()), 1e-30)


class Steps(Case):
    def test_adamw_in_double(self):
        weights = [values(number, *shape) for number, shape in enumerate(SHAPES)]
        references = [ReferenceAdamW(w) for w in weights]
        optimizer = make(weights)
        self.assertEqual(optimizer.state_planes, 2)
        for number in range(10):
            gradients = [values(100 * number + i, *shape) for i, shape in enumerate(SHAPES)]
            report = step(optimizer, gradients)
            self.assertTrue(report.applied)
            self.assertIsNone(report.norm)
            for reference, gradient in zip(references, gradients):
                reference.step(gradient)
        for tensor, (found, reference) in enumerate(zip(weights, references)):
            # A few roundings of half an ulp (6e-8) each step.
            self.assertLess(relative(found, reference.w), 1e-6)
            for plane, expected in enumerate((reference.m, reference.v)):
                out = numpy.empty(found.shape, numpy.float32)
                optimizer.read_state(tensor, plane, 0, out)
                self.assertLess(relative(out, expected), 1e-6)
            self.assertEqual(optimizer.steps(tensor), 10)

    def test_half_gradients_are_widened(self):
        gradient = values(1, 1000).astype(numpy.float16)
        one, other = values(2, 1000), values(2, 1000)
        step(make([one]), [gradient])
        step(make([other]), [gradient.astype(numpy.float32)])
        self.assert_bits(one, other)

    @needs_torch
    def test_torch_tensors(self):
        gradient = torch.from_numpy(values(1, 30, 50))
        expected = values(2, 30, 50)
        step(make([expected]), [gradient.bfloat16().float().numpy()])
        parameter = torch.nn.Parameter(torch.from_numpy(values(2, 30, 50)))
        step(make([parameter]), [gradient.bfloat16()])
        self.assert_bits(parameter.detach().numpy(), expected)

    @needs_torch
    def test_bf16_parameters_have_an_exact_master(self):
        start = torch.from_numpy(values(3, 5000)).bfloat16()
        master, half = start.float().numpy(), start.clone()
        exact, split = make([master]), make([half])
        for number in range(5):
            gradient = values(number, 5000)
            step(exact, [gradient])
            step(split, [gradient])
        out, residue = numpy.empty(5000, numpy.float32), numpy.empty(5000, numpy.int16)
        split.read_masters(0, 0, out)
        self.assert_bits(out, master)
        split.read_residue(0, 0, residue)
        joined = half.view(torch.int16).numpy().astype(numpy.int32) * 65536 + residue
        self.assert_bits(joined, master)
        split.write_residue(0, 10, numpy.arange(20, dtype=numpy.int16))
        split.read_residue(0, 0, residue)
        self.assert_bits(residue[10:30], numpy.arange(20, dtype=numpy.int16))
        split.reset_residue(0)
        split.read_residue(0, 0, residue)
        self.assertFalse(residue.any())
        split.read_masters(0, 0, out)
        self.assert_bits(out, half.float().numpy())

    def test_streamed_gives_the_same_bits(self):
        one, other = [values(1, 40_000), values(2, 7)], [values(1, 40_000), values(2, 7)]
        plain, streamed = make(one), make(other)
        for number in range(3):
            gradients = [values(10 + number, 40_000), values(20 + number, 7)]
            step(plain, gradients, gradient_scale=0.5)
            streamed.begin_streamed_step(gradient_scale=0.5)
            for tensor in (1, 0):
                streamed.give_gradient(tensor, gradients[tensor])
            streamed.end_gradients()
            streamed.wait_for(1)
            self.assert_bits(one[1], other[1])
            streamed.wait()
        self.assert_bits(one[0], other[0])

    def test_clipping_and_its_report(self):
        weights, gradient = values(1, 900), values(2, 900) * 10
        reference = ReferenceAdamW(weights)
        report = step(make([weights]), [gradient], gradient_scale=0.25, max_norm=3.0)
        norm = numpy.linalg.norm(gradient.astype(numpy.float64)) * 0.25
        self.assertAlmostEqual(report.norm, norm, delta=1e-6 * norm)
        reference.step(gradient, scale=0.25 * 3.0 / (norm + 1e-6))
        self.assertLess(relative(weights, reference.w), 1e-6)
        self.assertIn("norm=", repr(report))

    def test_nonfinite_rules(self):
        for bad in (numpy.inf, numpy.nan):
            gradients = [values(1, 5), values(2, 5)]
            gradients[1][2] = bad
            weights = [values(3, 5), values(4, 5)]
            before = [w.copy() for w in weights]
            optimizer = make(weights)
            report = step(optimizer, gradients, nonfinite="skip")
            self.assertEqual((report.applied, report.nonfinite, report.nonfinite_tensor), (False, 1, "1"))
            self.assert_bits(weights, before)
            self.assertEqual(optimizer.steps(0), 0)
            optimizer.give_gradients([0, 1], gradients)
            self.assert_says(spillway.NonfiniteGradient, ["'1'"], optimizer.begin_step, nonfinite="stop")
            self.assert_bits(weights, before)
            self.assertTrue(issubclass(spillway.NonfiniteGradient, ArithmeticError))
            optimizer.discard_gradients()
            step(optimizer, gradients)
            self.assertFalse(numpy.isfinite(weights[1][2]))
            self.assertTrue(numpy.isfinite(weights[0]).all())

    def test_groups(self):
        weights = [values(1, 300), values(1, 300)]
        slow = {**ADAM, "learning_rate": 1e-3}
        optimizer = spillway.TensorOptimizer([("a", weights[0], 0), ("b", weights[1], 1)], "adam", [ADAM, slow],
                                             host_bytes=64 * MIB)
        references = [ReferenceAdamW(w) for w in weights]
        for rates in ((1e-2, 1e-3), (5e-2, 1e-3), (5e-2, 0.0)):
            optimizer.set_group(0, {"learning_rate": rates[0]})
            optimizer.set_group(1, {"learning_rate": rates[1]})
            gradient = values(int(rates[0] * 1000), 300)
            step(optimizer, [gradient, gradient])
            for reference, rate in zip(references, rates):
                reference.step(gradient, lr=rate)
        for found, reference in zip(weights, references):
            self.assertLess(relative(found, reference.w), 1e-6)

    def test_without_a_gradient_nothing_moves(self):
        weights = [values(1, 10), values(2, 10)]
        before = weights[1].copy()
        optimizer = make(weights)
        optimizer.give_gradient(1, values(3, 10))
        optimizer.discard_gradients()
        optimizer.give_gradient(0, values(3, 10))
        optimizer.begin_step()
        optimizer.wait()
        self.assert_bits(weights[1], before)
        self.assertEqual([optimizer.steps(0), optimizer.steps(1)], [1, 0])
        optimizer.set_steps(1, 41)
        self.assertEqual(optimizer.steps(1), 41)

    def test_every_optimizer_steps(self):
        planes = {"adam": 2, "sgd": 1, "adagrad": 1, "lion": 1, "rmsprop": 3, "lamb": 2, "lars": 1}
        extra = {"lars": {"trust_coefficient": 1.0}, "sgd": {"momentum": 0.9, "nesterov": True}, "rmsprop": {"momentum": 0.5, "centred": True}}
        for name, count in planes.items():
            weights = values(1, 100)
            before = weights.copy()
            optimizer = make([weights], name, [{"learning_rate": 0.1, **extra.get(name, {})}])
            self.assertEqual(optimizer.state_planes, count)
            step(optimizer, [values(2, 100)])
            self.assertGreater(abs(weights - before).max(), 1e-3)
        self.assertEqual(make([values(1, 9)], "adam", [{"amsgrad": True}]).state_planes, 3)

    def test_nadam_is_a_field_of_adam(self):
        results = []
        for group in ({"nesterov": True}, {"nesterov": True, "momentum_decay": 4e-3}, {},
                      {"nesterov": True, "momentum_decay": 0.5}):
            weights = values(1, 100)
            optimizer = make([weights], "adam", [{"learning_rate": 0.1, **group}])
            self.assertEqual(optimizer.state_planes, 2)
            for number in range(3):
                step(optimizer, [values(number, 100)])
            results.append(weights.tobytes())
        self.assertEqual(results[0], results[1])
        self.assertEqual(len(set(results)), 3)
        with self.assertRaisesRegex(ValueError, "NAdam.*momentum_decay.*-1"):
            make([values(1, 9)], "adam", [{"nesterov": True, "momentum_decay": -1}])
        with self.assertRaisesRegex(ValueError, "amsgrad"):
            make([values(1, 9)], "adam", [{"nesterov": True, "amsgrad": True}])

    def test_places_threads_and_isas_give_the_same_bits(self):
        size = 3 * MIB
        results = set()
        with temporary_folder() as drive:
            for options in ({}, {"nvme": drive, "host_bytes": 12 * MIB}, {"threads": 1}, {"chunk_bytes": 256 << 10},
                            {"nvme": drive, "host_bytes": 12 * MIB, "io_backend": "threads"},
                            *({"isa": isa} for isa in spillway.isas())):
                weights = values(1, size)
                optimizer = make([weights], **options)
                for number in range(2):
                    step(optimizer, [values(number, size)])
                results.add(weights.tobytes())
                found = optimizer.statistics()
                self.assertEqual(found["nvme_read_bytes"] > 0, "nvme" in options)
                self.assertLessEqual(found["host_bytes"], options.get("host_bytes", 256 * MIB))
                if "io_backend" in options:
                    self.assertEqual(optimizer.io_backend, "threads")
                del optimizer
        self.assertEqual(len(results), 1)

    def test_two_objects_at_once(self):
        alone = values(1, 50_000)
        step(make([alone]), [values(2, 50_000)])
        together = [values(1, 50_000), values(1, 50_000)]
        pair = [make([w]) for w in together]
        for optimizer in pair:
            optimizer.give_gradient(0, values(2, 50_000))
            optimizer.begin_step()
        for optimizer in pair:
            optimizer.wait()
        self.assert_bits(together[0], alone)
        self.assert_bits(together[1], alone)


if __name__ == "__main__":
    unittest.main()
