# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""spillway.torch and DeepSpeed's CPU optimizers over 200 steps of gradients that change sign and span 1e-8 to 1e3.

The bound. Every rule is computed here in double as its paper has it, and beside each element the bound of what a float
computation of it may be off by then (running_error.py): a rounding of each operation, 2^-24 of its result, passed on
from step to step. Both libraries must lie within it, element by element, and so within twice that of one another. It
allows what DeepSpeed does otherwise: it multiplies the powers of beta up in float, a rounding a step, and takes a
moment as beta m + (1 - beta) g where spillway takes m + (1 - beta) (g - m). Hyper-parameters are numbers that a float
holds, since DeepSpeed takes 1 - beta after narrowing beta: 3e-5 of 1 - 0.999 would lie between the two otherwise.

DeepSpeed is no dependency of this project: without it this test skips. It builds its operators when they are first
used (TORCH_EXTENSIONS_DIR says where they stay).
"""
import os
import sys
import unittest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # ninja, which builds them

try:
    import numpy
    import spillway.torch as st
    import torch
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.ops.lion import DeepSpeedCPULion
    from running_error import Bounded, mixed, narrowed, rounding
except ModuleNotFoundError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

STEPS = 200
SHAPES = [(13, 77), (5,)]  # whole vectors and a tail behind them; less than a vector


def as_float(value):
    return float(numpy.float32(value))


BETAS = (as_float(0.9), as_float(0.999))
GROUPS = [{"lr": as_float(3e-3), "weight_decay": as_float(0.1)}, {"lr": as_float(1e-3), "weight_decay": 0.0}]


class Adam:
    """Kingma & Ba 2015, Algorithm 1; Loshchilov & Hutter 2019 with `decoupled`."""

    def __init__(self, weights, decoupled):
        self.w, self.m, self.v = Bounded(weights), Bounded(0 * weights), Bounded(0 * weights)
        self.decoupled = decoupled

    def step(self, t, g, group, betas=BETAS, eps=as_float(1e-8)):
        rate, decay = narrowed(group["lr"]), group["weight_decay"]
        if decay and self.decoupled:
            self.w = self.w - narrowed(group["lr"] * decay) * self.w
        elif decay:
            g = g + narrowed(decay) * self.w
        self.m = mixed(self.m, g, 1 - betas[0])
        self.v = narrowed(betas[1]) * self.v + narrowed(1 - betas[1]) * g * g
        first, second = (self.correction(beta, t) for beta in betas)
        root = self.v.root() * (narrowed(1) / second.root()) + narrowed(eps)
        self.w = self.w - (rate / first) * (self.m / root)

    @staticmethod
    def correction(beta, t):
        """1 - beta^t, of a power to which each step added a rounding."""
        return narrowed(1) - Bounded(beta ** t, t * rounding(beta ** t))


class Adagrad:
    """Duchi et al. 2011."""

    def __init__(self, weights, _):
        self.w, self.sum = Bounded(weights), Bounded(0 * weights)

    def step(self, t, g, group, eps=as_float(1e-10)):
        self.sum = self.sum + g * g
        self.w = self.w - narrowed(group["lr"]) * g / (self.sum.root() + narrowed(eps))


class Lion:
    """Chen et al. 2023, Algorithm 2."""

    def __init__(self, weights, _):
        self.w, self.m = Bounded(weights), Bounded(0 * weights)

    def step(self, t, g, group, betas=BETAS):
        c = narrowed(betas[0]) * self.m + narrowed(1 - betas[0]) * g
        rate = group["lr"]
        self.w = narrowed(1 - rate * group["weight_decay"]) * self.w
        # Where the float computation may find the other sign, it moves the other way.
        unsure = numpy.abs(c.value) <= c.error
        change = Bounded(rate * numpy.sign(c.value), numpy.where(unsure, 2 * rate, 0.0) + rounding(rate))
        self.w = self.w - change
        self.m = narrowed(betas[1]) * self.m + narrowed(1 - betas[1]) * g


def without_decay(group):
    """DeepSpeed's Adagrad divides the gradient without its decay by a root of squares with it: not compared."""
    return {**group, "weight_decay": 0.0}


# Name, the model, what it is made with, spillway's class, DeepSpeed's and its own arguments, and groups.
CASES = [
    ("AdamW", Adam, True, st.AdamW, DeepSpeedCPUAdam, {"adamw_mode": True}, GROUPS),
    ("Adam", Adam, False, st.Adam, DeepSpeedCPUAdam, {"adamw_mode": False}, GROUPS),
    ("Adagrad", Adagrad, None, st.Adagrad, DeepSpeedCPUAdagrad, {}, [without_decay(group) for group in GROUPS]),
    ("Lion", Lion, None, st.Lion, DeepSpeedCPULion, {}, GROUPS),
]


def start(number):
    return numpy.random.default_rng(number).standard_normal(SHAPES[number]).astype(numpy.float32)


def gradients(number):
    """Of every step: either sign, magnitudes evenly over the decades from 1e-8 to 1e3."""
    random = numpy.random.default_rng(100 + number)
    size = (STEPS, *SHAPES[number])
    return (10 ** random.uniform(-8, 3, size) * random.choice([-1, 1], size)).astype(numpy.float32)


def modelled(model, made_with, groups):
    """What each tensor must be after all steps."""
    weights = []
    for number, group in enumerate(groups):
        rule = model(start(number).astype(numpy.float64), made_with)
        for t, gradient in enumerate(gradients(number), 1):
            rule.step(t, Bounded(gradient), group)
        weights.append(rule.w)
    return weights


def trained(kind, arguments, groups):
    """Where `kind` really takes them."""
    parameters = [torch.nn.Parameter(torch.from_numpy(start(number))) for number in range(len(groups))]
    if kind not in (st.Adagrad, DeepSpeedCPUAdagrad):
        arguments = {"betas": BETAS, **arguments}
    optimizer = kind([{"params": [p], **group} for p, group in zip(parameters, groups)], **arguments)
    steps = [gradients(number) for number in range(len(groups))]
    for t in range(STEPS):
        for parameter, gradient in zip(parameters, steps):
            parameter.grad = torch.from_numpy(gradient[t])
        optimizer.step()
    return [parameter.detach().numpy() for parameter in parameters]


def furthest(models, weights):
    """The largest multiple of its bound that any element is off."""
    return max(float(model.distance(found).max()) for model, found in zip(models, weights))


class DeepSpeedOracle(unittest.TestCase):
    def test_both_end_within_the_bound_element_by_element(self):
        for name, model, made_with, ours, theirs, arguments, groups in CASES:
            with self.subTest(name=name):
                expected = modelled(model, made_with, groups)
                found, peer = trained(ours, {}, groups), trained(theirs, arguments, groups)
                relative = [w.error / (numpy.abs(w.value) + 1e-2) for w in expected]
                print(f"{name}: of the bound, spillway {furthest(expected, found):.2f}, DeepSpeed "
                      f"{furthest(expected, peer):.2f}; the bound, of a weight + 0.01: median "
                      f"{float(numpy.median(relative[0])):.1e}, most {max(float(r.max()) for r in relative):.1e}")
                self.assertLessEqual(furthest(expected, found), 1)
                self.assertLessEqual(furthest(expected, peer), 1)
                # A bound that allows anything would say nothing.
                self.assertLess(max(float(r.max()) for r in relative), 1e-3)
                self.assertLess(float(numpy.median(relative[0])), 1e-4)

    def test_a_planted_error_leaves_the_bound(self):
        """One percent of the rate, the other kind of decay, and a moment that forgets a little sooner."""
        for name, model, made_with, ours, _, _, groups in CASES:
            expected = modelled(model, made_with, groups)
            wrong_rate = [{**group, "lr": group["lr"] * 1.01} for group in groups]
            planted = [("lr", ours, {}, wrong_rate)]
            if name == "AdamW":
                planted += [("decay", st.Adam, {}, groups), ("beta2", ours, {"betas": (BETAS[0], 0.9985)}, groups),
                            ("eps", ours, {"eps": 1e-3}, groups)]
            for what, kind, arguments, given in planted:
                with self.subTest(name=name, wrong=what):
                    weights = trained(kind, arguments, given)
                    outside = expected[0].distance(weights[0]) > 1
                    self.assertGreater(float(outside.mean()), 0.5)


if __name__ == "__main__":
    unittest.main()
