# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""torch's own data base of optimizer inputs and error inputs, run over the classes here: every combination equals
torch's class or is refused at construction with a clear error."""
import copy
import itertools
import re
import sys
import types
import unittest
import warnings

from torch_support import nn, st, torch

try:
    import expecttest  # noqa: F401
except ImportError:  # the module of the data base imports it for a base class that is not used here
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase

from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

OURS = ("Adam", "AdamW", "NAdam", "SGD", "Adagrad", "RMSprop")
INFOS = {info.name: info for info in optim_db if info.name in OURS}
FLAGS = ({}, {"foreach": True}, {"fused": True}, {"foreach": False}, {"fused": False}, {"capturable": True},
         {"differentiable": True}, {"maximize": True})
STEPS = 8


def module(dtype):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 4)).to(dtype)


def trained(kind, arguments, dtype):
    net = module(dtype)
    # torch writes into a tensor learning rate that it was given.
    optimizer = kind(net.parameters(), **copy.deepcopy(arguments))
    for step in range(STEPS):
        optimizer.zero_grad()
        x = torch.linspace(-1, 1, 7, dtype=dtype) * (step + 1)
        net(x).float().square().sum().backward()
        optimizer.step()
    return net, optimizer


class OptimizerDatabase(unittest.TestCase):
    def test_it_knows_our_classes(self):
        self.assertEqual(sorted(INFOS), sorted(OURS))

    def test_inputs(self):
        equal, refused = 0, 0
        for name, device in itertools.product(OURS, ("cpu", "cuda", "mps")):
            for given in INFOS[name].optim_inputs_func(device=device):
                for flags in FLAGS:
                    arguments = {**given.kwargs, **flags}
                    with self.subTest(name=name, what=given.desc, **flags):
                        if self.compare(name, arguments):
                            equal += 1
                        else:
                            refused += 1
        print(f"{equal} combinations equal torch, {refused} are refused")
        self.assertGreater(equal, 100)

    def compare(self, name, arguments):
        """False if ours refuses them at construction, as torch's does or for what it says."""
        ours, theirs = getattr(st, name), getattr(torch.optim, name)
        if arguments.get("capturable") or arguments.get("differentiable"):
            errors = (TypeError, ValueError, RuntimeError)
            with self.assertRaisesRegex(errors, "capturable|differentiable|foreach|fused"):
                ours(module(torch.float32).parameters(), **arguments)
            return False
        try:
            expected, their_optimizer = trained(theirs, arguments, torch.float32)
        except (TypeError, ValueError) as error:
            with self.assertRaises(type(error)):
                ours(module(torch.float32).parameters(), **arguments)
            return False
        found, our_optimizer = trained(ours, arguments, torch.float32)
        # Centred, the denominator is the root of a difference of two nearly equal numbers.
        tolerance = {"rtol": 1e-3, "atol": 1e-5} if arguments.get("centered") else {"rtol": 2e-5, "atol": 1e-6}
        for a, b in zip(found.parameters(), expected.parameters()):
            torch.testing.assert_close(a, b, **tolerance)
        self.compare_state(our_optimizer.state_dict(), their_optimizer.state_dict(), tolerance)
        return True

    def compare_state(self, ours, theirs, tolerance):
        self.assertEqual(ours["state"].keys(), theirs["state"].keys())
        for key, values in theirs["state"].items():
            kept = {name: value for name, value in values.items() if value is not None}
            self.assertEqual(ours["state"][key].keys(), kept.keys())
            for name, value in kept.items():
                torch.testing.assert_close(ours["state"][key][name], value, **tolerance)
        for own, other in zip(ours["param_groups"], theirs["param_groups"], strict=True):
            self.assertEqual(own.keys(), other.keys())
            self.assertEqual({key: own[key] for key in own if key != "capturable"},
                             {key: other[key] for key in other if key != "capturable"})

    def test_error_inputs(self):
        seen = 0
        for name in OURS:
            for case in INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32):
                given = case.optimizer_error_input
                with self.subTest(name=name, what=given.desc):
                    self.assertEqual(case.error_on, OptimizerErrorEnum.CONSTRUCTION_ERROR)
                    params = given.params if given.params is not None else list(module(torch.float32).parameters())
                    if issubclass(case.error_type, Warning):
                        with self.assertWarnsRegex(case.error_type, case.error_regex):
                            getattr(st, name)(params, **given.kwargs)
                    else:
                        with self.assertRaisesRegex(case.error_type, case.error_regex):
                            getattr(st, name)(params, **given.kwargs)
                    seen += 1
        self.assertGreater(seen, 30)

    def test_schedulers_of_the_data_base(self):
        for name in OURS:
            for makers in INFOS[name].scheduler_inputs:
                nets = []
                for library in (torch.optim, st):
                    net = module(torch.float32)
                    optimizer = getattr(library, name)(net.parameters(), lr=0.01)
                    schedules = [make(optimizer) for make in makers]
                    for step in range(12):
                        optimizer.zero_grad()
                        loss = net(torch.ones(7)).square().sum()
                        loss.backward()
                        optimizer.step()
                        for schedule in schedules:
                            plateau = isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
                            schedule.step(*([loss] if plateau else []))
                    nets.append(net)
                for a, b in zip(*(net.parameters() for net in nets)):
                    torch.testing.assert_close(b, a, rtol=2e-5, atol=1e-6)

    def test_dtypes_and_devices_that_cannot_be(self):
        refused = [torch.float64, torch.float16, torch.int32, torch.int8, torch.bool, torch.complex64, torch.complex128]
        for name, dtype in itertools.product((*OURS, "Lion"), refused):
            text = f"parameter 0 of group 0.*{dtype}"
            with self.subTest(name=name, dtype=dtype), self.assertRaisesRegex(ValueError, text):
                getattr(st, name)([torch.zeros(3, dtype=dtype)], lr=0.1)
        for name in (*OURS, "Lion"):
            with self.assertRaisesRegex(ValueError, "meta"):
                getattr(st, name)([torch.zeros(3, device="meta")], lr=0.1)
            with self.assertRaisesRegex(ValueError, "sparse"):
                getattr(st, name)([torch.zeros(3, 3).to_sparse()], lr=0.1)

    def test_lion_refuses_what_adam_refuses(self):
        net = module(torch.float32)
        for arguments, text in (({"lr": -1.0}, "Invalid learning rate: -1.0"), ({"betas": (1.0, 0.9)}, "index 0: 1.0"),
                                ({"weight_decay": -1}, "Invalid weight_decay value: -1"),
                                ({"capturable": True}, "capturable=True"),
                                ({"differentiable": True}, "differentiable=True")):
            with self.subTest(**arguments), self.assertRaisesRegex(ValueError, re.escape(text)):
                st.Lion(net.parameters(), **arguments)


if __name__ == "__main__":
    warnings.simplefilter("always")
    unittest.main()
