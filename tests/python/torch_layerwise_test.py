# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""LAMB and LARS, which measure whole tensors before they move them: against their papers, wherever the state lies."""
import math

from torch_support import ROWS, batch, budgets, drive, groups, model, same_bits, st, torch, unittest

STEPS = 4
CASES = [
    ("LAMB", {"lr": 0.02}),
    ("LAMB", {"lr": 0.02, "betas": (0.8, 0.99), "weight_decay": 0.1, "weight_norm_bounds": (0.5, 2.0), "maximize": True}),
    ("LARS", {"lr": 2.0, "trust_coefficient": 0.01}),
    ("LARS", {"lr": 2.0, "momentum": 0.0, "weight_decay": 0.1}),
]
LOSSY = ("LAMB", {"lr": 0.02, "state": "int8"})
LOSSY_LARS = ("LARS", {"lr": 2.0, "trust_coefficient": 0.01, "state": "int8"})


def lamb(w, g, state, group):
    """You et al. 2020, Algorithm 2, in double."""
    m, v = state.setdefault("m", torch.zeros_like(w)), state.setdefault("v", torch.zeros_like(w))
    beta1, beta2 = group["betas"]
    state["t"] = state.get("t", 0) + 1
    m.mul_(beta1).add_(g, alpha=1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    r = m / (1 - beta1 ** state["t"]) / ((v / (1 - beta2 ** state["t"])).sqrt() + group["eps"])
    u = r + group["weight_decay"] * w
    least, most = group["weight_norm_bounds"]
    norm = float(w.norm())
    ratio = min(max(norm, least), most) / float(u.norm()) if norm and float(u.norm()) else 1.0
    return w - group["lr"] * ratio * u


def lars(w, g, state, group):
    """You et al. 2017, Algorithm 1, in double."""
    buffer = state.setdefault("m", torch.zeros_like(w))
    norm, decay = float(w.norm()), group["weight_decay"]
    ratio = (group["trust_coefficient"] * norm / (float(g.norm()) + decay * norm)) if norm and float(g.norm()) else 1.0
    buffer.mul_(group["momentum"]).add_(g + decay * w, alpha=group["lr"] * ratio)
    return w - buffer


def train(net, optimizer, steps=STEPS):
    for step in range(steps):
        net.loss(batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()


class Layerwise(unittest.TestCase):
    def test_follows_its_paper(self):
        for name, arguments in CASES:
            with self.subTest(name=name, **arguments):
                net = model()
                optimizer = getattr(st, name)(groups(net), **arguments)
                rule, states = {"LAMB": lamb, "LARS": lars}[name], {}
                for step in range(STEPS):
                    net.loss(batch(step)).backward()
                    expected = {}
                    for group in optimizer.param_groups:
                        for p in group["params"]:
                            if p.grad is not None:
                                g = p.grad.double() * (-1 if group["maximize"] else 1)
                                expected[p] = rule(p.detach().double(), g, states.setdefault(p, {}), group)
                    self.assertGreater(len(expected), 10)
                    optimizer.step()
                    optimizer.zero_grad()
                    for p, w in expected.items():
                        error = float((p.detach().double() - w).norm()) / (float(w.norm()) + 1e-30)
                        self.assertLess(error, 3e-6)

    def test_places_and_modes_give_the_same_bits(self):
        with drive() as folder:
            for name, arguments in (CASES[0], CASES[2], LOSSY):
                least, half = budgets(name, arguments, folder)
                reference = model(rows=ROWS)
                train(reference, getattr(st, name)(groups(reference), **arguments), 2)
                for offload in ({"host_mem": least}, {"host_mem": half}, {"host_mem": least, "overlap": "forward"}):
                    with self.subTest(name=name, **offload):
                        net = model(rows=ROWS)
                        optimizer = getattr(st, name)(groups(net), **arguments, nvme=folder, **offload)
                        train(net, optimizer, 2)
                        if "overlap" in offload:
                            optimizer.wait()
                        found = optimizer.statistics()
                        self.assertGreater(found["nvme_read_bytes"], found["nvme_written_bytes"])
                        self.assertEqual(same_bits(net, reference), [])
                        del optimizer

    def test_state_comes_back(self):
        for name, arguments in (CASES[0], CASES[2], LOSSY, LOSSY_LARS):
            nets, states = [], []
            for interrupted in (False, True):
                net = model()
                optimizer = getattr(st, name)(groups(net), **arguments)
                train(net, optimizer, 2)
                if interrupted:
                    saved = optimizer.state_dict()
                    optimizer = getattr(st, name)(groups(net), **arguments)
                    optimizer.load_state_dict(saved)
                train(net, optimizer, 2)
                nets.append(net)
                states.append(optimizer.state_dict()["state"][0])
            self.assertEqual(same_bits(*nets), [])
            planes = {"exp_avg", "exp_avg_sq"} if name == "LAMB" else {"momentum_buffer"}
            self.assertEqual(set(states[0]), {"step", *planes})

    def test_refusals(self):
        for name, arguments, words in (
            ("LAMB", {"weight_norm_bounds": (2.0, 1.0)}, "weight_norm_bounds"), ("LAMB", {"betas": (1.0, 0.9)}, "beta"),
            ("LARS", {"trust_coefficient": -1.0}, "trust_coefficient"), ("LARS", {"momentum": -1.0}, "momentum"),
            ("LARS", {"trust_coefficient": math.nan}, "trust_coefficient"),
        ):
            with self.subTest(name=name, **arguments), self.assertRaisesRegex(ValueError, words):
                getattr(st, name)(model().parameters(), **arguments)


if __name__ == "__main__":
    unittest.main()
