# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""spillway.torch does what torch.optim.Optimizer does, and says no where it cannot."""
import torch_support  # noqa: F401  first, since it skips the test where torch is missing
import contextlib
import gc
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import unittest.mock
import weakref

import numpy
import spillway
from spillway import NonfiniteGradient, Refused
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_support import (ROWS, batch, budgets, copy, distance, drive, groups, make, model, nn, same_bits, st, torch,
                           train, unittest, warnings)

CLASSES = ("AdamW", "Adam", "NAdam", "SGD", "Adagrad", "RMSprop", "Lion")
ARGUMENTS = {"SGD": {"momentum": 0.9}, "RMSprop": {"eps": 1e-4}}


def pair(name, start, **arguments):
    """The same parameters under our class and torch's."""
    result = []
    for library in (st, torch.optim):
        parameters = [nn.Parameter(t.clone()) for t in start]
        result.append((parameters, make(library, name, _Parameters(parameters), arguments)))
    return result


class _Parameters:
    def __init__(self, parameters):
        self._parameters = parameters

    def parameters(self):
        return self._parameters


def give(parameters, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


class Groups(unittest.TestCase):
    def test_added_later_with_state_carried_over(self):
        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            for name in CLASSES:
                for offload in ({}, {"nvme": folder, "host_mem": least}):
                    with self.subTest(name=name, **offload):
                        nets = []
                        for library, own in ((st, offload), (torch.optim, {})):
                            net = model(rows=ROWS if own else 0)
                            late = list(net.blocks[1].parameters())
                            early = [p for p in net.parameters() if all(p is not q for q in late)]
                            kind = make if name == "Lion" and library is torch.optim else None
                            arguments = {"lr": 1e-3, **ARGUMENTS.get(name, {})}
                            optimizer = (kind(library, name, _Parameters(early), arguments) if kind else
                                         getattr(library, name)(early, **arguments, **own))
                            train(net, optimizer, 2)
                            optimizer.add_param_group({"params": late, "lr": 5e-3})
                            train(net, optimizer, 2, first=2)
                            nets.append(net)
                        if not offload:
                            self.assertLess(distance(*nets), 1e-4 if name == "Lion" else 2e-6)

    def test_edited_and_interleaved(self):
        for name in CLASSES:
            with self.subTest(name=name):
                start = [torch.randn(5, 3) for _ in range(6)]
                result = []
                for parameters, optimizer in pair(name, start, lr=0.1, **ARGUMENTS.get(name, {})):
                    optimizer.param_groups.clear()
                    for slice_, lr in ((slice(0, None, 2), 0.1), (slice(1, None, 2), 0.001)):
                        optimizer.add_param_group({"params": parameters[slice_], "lr": lr, "weight_decay": lr})
                    for step in range(6):
                        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
                        optimizer.param_groups[1]["weight_decay"] = 0.01 * step
                        optimizer.param_groups[1]["maximize"] = step == 3
                        give(parameters, step)
                        optimizer.step()
                    result.append(parameters)
                for ours, theirs in zip(*result):
                    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

    def test_moved_between_groups_and_taken_out(self):
        start = [torch.randn(4) for _ in range(4)]
        result = []
        for parameters, optimizer in pair("AdamW", start, lr=0.1):
            optimizer.param_groups.clear()
            optimizer.add_param_group({"params": parameters[:2], "lr": 0.1})
            optimizer.add_param_group({"params": parameters[2:], "lr": 0.01})
            for step in range(4):
                give(parameters, step)
                optimizer.step()
                if step == 1:
                    first, second = optimizer.param_groups
                    second["params"].append(first["params"].pop())
                if step == 2:
                    del optimizer.param_groups[0]
            result.append(parameters)
        for ours, theirs in zip(*result):
            torch.testing.assert_close(ours, theirs)

    def test_tensor_learning_rates_and_betas(self):
        start = [torch.randn(8, 2)]
        betas = (torch.tensor(0.9), torch.tensor(0.99))
        (ours, first), (theirs, second) = pair("AdamW", start, lr=torch.tensor(0.01), betas=betas)
        for step in range(5):
            for parameters, optimizer in ((ours, first), (theirs, second)):
                give(parameters, step)
                optimizer.step()
                for group in optimizer.param_groups:
                    group["lr"] = torch.tensor(0.01 / (step + 1))
        torch.testing.assert_close(ours[0], theirs[0])

    def test_more_planes_in_mid_run(self):
        """amsgrad and momentum turned on, off and on: the state there is goes on, what is new starts at zero."""
        for name, changes in (("SGD", [{"momentum": 0.0}, {"momentum": 0.9}, {"momentum": 0.0}, {"momentum": 0.5}]),
                              ("AdamW", [{}, {"weight_decay": 0.5}, {}, {}])):
            start = [torch.randn(9), torch.randn(3, 3)]
            (ours, first), (theirs, second) = pair(name, start, lr=0.05)
            for step, change in enumerate(changes * 2):
                for parameters, optimizer in ((ours, first), (theirs, second)):
                    for group in optimizer.param_groups:
                        group.update(change)
                    give(parameters, step)
                    if step == 3:
                        parameters[0].grad = None
                    optimizer.step()
            for a, b in zip(ours, theirs):
                torch.testing.assert_close(a, b)
        parameter = nn.Parameter(torch.ones(4))
        optimizer = st.AdamW([parameter], lr=0.1)
        give([parameter], 0)
        optimizer.step()
        second_moment = optimizer.state[parameter]["exp_avg_sq"].clone()
        optimizer.param_groups[0]["amsgrad"] = True
        parameter.grad.zero_()
        optimizer.step()
        state = optimizer.state[parameter]
        self.assertTrue(torch.equal(state["max_exp_avg_sq"], state["exp_avg_sq"]))
        self.assertTrue((state["exp_avg_sq"] < second_moment).all())
        optimizer.step()
        self.assertTrue((state["exp_avg_sq"] < state["max_exp_avg_sq"]).all())

    def test_rmsprops_planes_change_places(self):
        parameter = nn.Parameter(torch.ones(4))
        optimizer = st.RMSprop([parameter], lr=0.1, centered=True, momentum=0.9)
        give([parameter], 0)
        optimizer.step()
        mean = optimizer.state[parameter]["grad_avg"].clone()
        optimizer.param_groups[0]["momentum"] = 0.0
        parameter.grad = mean.clone()  # which leaves the mean almost where it is
        optimizer.step()
        torch.testing.assert_close(optimizer.state[parameter]["grad_avg"], mean * 0.99 + mean * 0.01)

    def test_names(self):
        net = model()
        optimizer = st.AdamW(net.named_parameters(), nonfinite="stop")
        net.loss(batch(0)).backward()
        net.blocks[1].up.weight.grad[3, 3] = float("nan")
        with self.assertRaisesRegex(NonfiniteGradient, r"blocks\.1\.up\.weight"):
            optimizer.step()


class Steps(unittest.TestCase):
    def test_closure_hooks_and_zero_grad(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))

        def closure():
            optimizer.zero_grad()
            loss = net.loss(batch(0))
            loss.backward()
            return loss

        before = [p.detach().clone() for p in net.parameters()]
        loss = optimizer.step(closure)
        self.assertGreater(loss.item(), 0)
        self.assertTrue(loss.requires_grad)
        self.assertEqual(calls, ["before", "after"])
        self.assertTrue(any(not torch.equal(p, b) for p, b in zip(net.parameters(), before)))
        optimizer.zero_grad(set_to_none=False)
        self.assertFalse(any(p.grad.any() for p in net.parameters() if p.grad is not None))
        optimizer.zero_grad()
        self.assertTrue(all(p.grad is None for p in net.parameters()))

    def test_without_gradients_nothing_happens(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        optimizer.step()
        self.assertEqual(len(optimizer.state), 0)
        self.assertEqual(same_bits(net, model()), [])

    def test_frozen_and_unfrozen(self):
        for name in CLASSES:
            with self.subTest(name=name):
                start = [torch.randn(5), torch.randn(4)]
                result = []
                for parameters, optimizer in pair(name, start, lr=0.05, weight_decay=0.1, **ARGUMENTS.get(name, {})):
                    for step in range(8):
                        give(parameters, step)
                        if 2 <= step < 5:
                            parameters[1].grad = None
                            parameters[1].requires_grad_(False)
                        else:
                            parameters[1].requires_grad_(True)
                        if step == 4:
                            frozen = parameters[1].detach().clone()
                            optimizer.step()
                            self.assertTrue(torch.equal(parameters[1], frozen))
                        else:
                            optimizer.step()
                    result.append(parameters)
                for ours, theirs in zip(*result):
                    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)

    def test_frozen_parameters_cost_nothing(self):
        net = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 2))
        net[0].requires_grad_(False)
        optimizer = st.AdamW(net.parameters())
        net(torch.ones(1000)).sum().backward()
        optimizer.step()
        self.assertLess(optimizer.statistics()["state_bytes"], 1 << 20)
        net[0].requires_grad_(True)
        net(torch.ones(1000)).sum().backward()
        optimizer.step()
        self.assertGreater(optimizer.statistics()["state_bytes"], 7 << 20)
        self.assertEqual(float(optimizer.state[net[1].weight]["step"]), 2.0)
        self.assertEqual(float(optimizer.state[net[0].weight]["step"]), 1.0)

    def test_a_parameter_listed_twice_is_updated_once(self):
        parameter = nn.Parameter(torch.ones(3))
        with self.assertWarnsRegex(UserWarning, "duplicate parameters"):
            optimizer = st.SGD([parameter, parameter], lr=1.0)
        parameter.grad = torch.ones(3)
        optimizer.step()
        self.assertTrue(torch.equal(parameter, torch.zeros(3)))
        self.assertEqual(optimizer.state_dict()["param_groups"][0]["params"], [0, 0])

    def test_shapes(self):
        start = [torch.randn(0), torch.randn(8, 0), torch.randn(1), torch.randn(()), torch.randn(3, 5).T,
                 torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.randn(1, 1, 7),
                 torch.randn(513, 257)]
        for dtype in (torch.float32, torch.bfloat16):
            for name in CLASSES:
                with self.subTest(name=name, dtype=dtype):
                    result = []
                    for library in (st, torch.optim):
                        parameters = []
                        for t in start:
                            kept = nn.Parameter(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t))
                            parameters.append(kept if library is torch.optim else nn.Parameter(kept.detach().to(dtype)))
                        arguments = {"lr": 0.01, **ARGUMENTS.get(name, {})}
                        optimizer = make(library, name, _Parameters(parameters), arguments)
                        for step in range(4):
                            generator = torch.Generator().manual_seed(step)
                            for p in parameters:
                                gradient = torch.randn(p.shape, generator=generator).to(dtype)
                                p.grad = gradient.to(p.dtype)  # row-major, also where the parameter is not
                            optimizer.step()
                        result.append((parameters, optimizer))
                    (ours, optimizer), (theirs, other) = result
                    for a, b in zip(ours, theirs):
                        tolerance = {} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
                        torch.testing.assert_close(a.float(), b, **tolerance)
                        self.assertEqual(a.stride(), b.stride())
                        state, theirs_state = optimizer.state[a], other.state[b]
                        for key in theirs_state:
                            if key != "step" and b.numel() and dtype is torch.float32:
                                torch.testing.assert_close(state[key], theirs_state[key])

    def test_only_empty_tensors(self):
        for name in CLASSES:
            for overlap in (None, "forward", "backward"):
                with self.subTest(name=name, overlap=overlap):
                    result = []
                    for library, own in ((st, {"overlap": overlap}), (torch.optim, {})):
                        parameters = [nn.Parameter(torch.zeros(0, 2)), nn.Parameter(torch.zeros(3, 0))]
                        optimizer = make(library, name, _Parameters(parameters), {"lr": 0.1}, **own)
                        for step in range(3):
                            give(parameters, step)
                            with getattr(optimizer, "last_micro_batch", contextlib.nullcontext)():
                                pass
                            optimizer.step()
                        result.append(optimizer.state_dict()["state"])
                    ours, theirs = result
                    self.assertEqual({k: {n: (v.shape, v.tolist()) for n, v in s.items()} for k, s in ours.items()},
                                     {k: {n: (v.shape, v.tolist()) for n, v in s.items() if v is not None}
                                      for k, s in theirs.items() if name != "SGD"})
        many = [nn.Parameter(torch.zeros(0))]
        optimizer = st.AdamW(many, max_grad_norm=1.0, nonfinite="skip")
        give(many, 0)
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        give(optimizer.param_groups[1]["params"], 1)
        optimizer.step()
        self.assertEqual([float(s["step"]) for s in optimizer.state.values()], [2.0, 1.0])

    def test_lazy_modules(self):
        """Their parameters have neither shape nor values when the optimizer is made."""
        nets = []
        inputs = torch.randn(8, 3)
        kinds = [(torch.optim, {}), (st, {}), (st, {"overlap": "forward"}), (st, {"overlap": "backward"})]
        for library, overlap in kinds:
            torch.manual_seed(0)
            net = nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 2))
            optimizer = library.AdamW(net.parameters(), lr=0.1, **overlap)
            for step in range(4):
                torch.manual_seed(step)
                output = net(inputs)
                optimizer.zero_grad()
                with getattr(optimizer, "last_micro_batch", contextlib.nullcontext)():
                    output.square().mean().backward()
                optimizer.step()
            nets.append(net)
            getattr(optimizer, "wait", lambda: None)()
        for net in nets[1:]:
            self.assertLess(distance(net, nets[0]), 1e-6)
            self.assertEqual(same_bits(net, nets[1]), [])

    def test_gradients_of_other_strides_and_types(self):
        parameter = nn.Parameter(torch.zeros(4, 6))
        optimizer = st.SGD([parameter], lr=1.0)
        base = torch.randn(6, 8)
        for gradient in (base[:, ::2].T, torch.ones(1, 1).expand(4, 6), torch.randn(4, 6, 2)[..., 1], base[:4, :6]):
            before = parameter.detach().clone()
            parameter.grad = gradient
            optimizer.step()
            torch.testing.assert_close(parameter.detach(), before - gradient)
        if hasattr(parameter, "grad_dtype"):
            half = nn.Parameter(torch.zeros(5))
            half.grad_dtype = torch.bfloat16
            half.grad = torch.full((5,), 0.5, dtype=torch.bfloat16)
            st.SGD([half], lr=1.0).step()
            self.assertTrue(torch.equal(half, torch.full((5,), -0.5)))

    def test_sparse_gradients_change_nothing(self):
        for name in CLASSES:
            table, other = nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1)
            optimizer = getattr(st, name)([*other.parameters(), *table.parameters()], lr=0.1)
            other(table(torch.tensor([1, 2]))).sum().backward()
            before = copy.deepcopy([table, other])
            with self.assertRaisesRegex(RuntimeError, f"{name} does not support sparse gradients.*Embedding"):
                optimizer.step()
            self.assertEqual(same_bits(table, before[0]) + same_bits(other, before[1]), [])

    def test_accumulation(self):
        one, several = model(), model()
        whole = torch.cat([batch(k) for k in range(4)])
        for net, parts in ((one, [whole]), (several, whole.split(3))):
            optimizer = st.SGD(groups(net), lr=0.1)
            for part in parts:
                (net.loss(part) * (len(part) / len(whole))).backward()
            optimizer.step()
        self.assertLess(distance(several, one), 1e-6)

    def test_grad_scaler(self):
        nets = []
        for library in (st, torch.optim):
            net = model()
            optimizer = make(library, "AdamW", net, {"lr": 1e-3})
            scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
            for step in range(6):
                scaler.scale(net.loss(batch(step))).backward()
                if step == 3:
                    net.gain.grad.fill_(float("inf"))
                if step == 4:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            self.assertEqual(float(optimizer.state[net.gain]["step"]), 5.0)
            nets.append((net, scaler.get_scale()))
        self.assertEqual(nets[0][1], nets[1][1])
        self.assertLess(distance(nets[0][0], nets[1][0]), 2e-6)

    def test_autograd_notices_a_stale_tensor(self):
        weight = nn.Parameter(torch.ones(3))
        optimizer = st.SGD([weight], lr=0.1)
        loss = (weight * weight).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_edits_in_place_are_seen(self):
        """A bf16 parameter that the user changes in place starts from the new value, without an old residue."""
        parameter = nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
        optimizer = st.AdamW([parameter], lr=1e-4)
        for step in range(3):
            give([parameter], step)
            optimizer.step()
        self.assertFalse(torch.equal(optimizer.master(parameter), parameter.detach().float()))
        self.assertIn("residue", optimizer.state_dict()["state"][0])
        with torch.no_grad():
            parameter.mul_(2)
        self.assertNotIn("residue", optimizer.state_dict()["state"][0])
        self.assertTrue(torch.equal(optimizer.master(parameter), parameter.detach().float()))


class Names(unittest.TestCase):
    def test_a_name_that_is_none_is_refused(self):
        with self.assertRaisesRegex(AttributeError, "has no attribute 'Adamw'"):
            st.Adamw  # noqa: B018


class Moved(unittest.TestCase):
    def test_replaced_values_are_followed(self):
        plain, moved = model(), model()
        first, second = st.SGD(groups(plain), lr=0.1), st.SGD(groups(moved), lr=0.1)
        for step in range(3):
            train(plain, first, 1, first=step)
            train(moved, second, 1, first=step)
            for p in moved.parameters():
                p.data = p.data.clone()
        moved.share_memory()
        train(plain, first, 1, first=3)
        train(moved, second, 1, first=3)
        self.assertEqual(same_bits(plain, moved), [])

    def test_replaced_bf16_values_are_the_masters(self):
        net = model(dtype=torch.bfloat16)
        optimizer = st.SGD(groups(net), lr=0.1)
        train(net, optimizer, 2)
        weight = net.tokens.weight
        self.assertFalse(torch.equal(optimizer.master(weight), weight.detach().float()))
        weight.data = torch.full_like(weight, 0.5)
        self.assertTrue(torch.equal(optimizer.master(weight), torch.full(weight.shape, 0.5)))
        train(net, optimizer, 1, first=2)
        self.assertTrue((weight - 0.5).abs().max() < 0.5)

    def test_another_memory_order_takes_the_state_along(self):
        nets = []
        for library in (st, torch.optim):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
            optimizer = library.AdamW(net.parameters(), lr=1e-2)
            for step in range(6):
                if step == 3:
                    net = net.to(memory_format=torch.channels_last)
                x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(step))
                net(x).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            nets.append(net)
        self.assertLess(distance(*nets), 2e-6)

    def test_another_type_or_shape_is_refused(self):
        net = nn.Linear(4, 4)
        optimizer = st.AdamW(net.parameters())
        net(torch.ones(4)).sum().backward()
        optimizer.step()
        net.bfloat16()
        net(torch.ones(4, dtype=torch.bfloat16)).sum().backward()
        with self.assertRaisesRegex(TypeError, "was torch.float32 and is torch.bfloat16 now"):
            optimizer.step()
        net = nn.Linear(4, 4)
        optimizer = st.AdamW(net.parameters())
        net(torch.ones(4)).sum().backward()
        optimizer.step()
        net.zero_grad()
        net.weight.data = torch.zeros(5, 4)
        net.weight.grad = torch.zeros(5, 4)
        with self.assertRaisesRegex(ValueError, r"had shape \(4, 4\)"):
            optimizer.step()


class Refusals(unittest.TestCase):
    def test_parameters(self):
        leaf = torch.zeros(3, requires_grad=True)
        shared = torch.zeros(8)
        cases = [
            ([leaf * 2], ValueError, "can't optimize a non-leaf Tensor"),
            ([torch.zeros(1).expand(4)], ValueError, "overlap or have gaps"),
            ([torch.zeros(8)[::2]], ValueError, "overlap or have gaps"),
            (leaf, TypeError, "should be an iterable of Tensors"),
            ([3], TypeError, "optimizer can only optimize Tensors"),
            ([], ValueError, "empty parameter list"),
        ]
        for params, kind, text in cases:
            with self.subTest(text=text), self.assertRaisesRegex(kind, text):
                st.AdamW(params)
        first, second = nn.Parameter(shared[:5]), nn.Parameter(shared[4:])
        with self.assertRaisesRegex(ValueError, "0 of group 0 and 1 of group 0 share memory"):
            st.AdamW([first, second])
        optimizer = st.AdamW([first])
        with self.assertRaisesRegex(ValueError, "0 of group 0 and 0 of group 1 share memory"):
            optimizer.add_param_group({"params": [second]})

    def test_parameters_without_values_here(self):
        def fake(device):
            with FakeTensorMode(allow_non_fake_inputs=True):
                return nn.Parameter(torch.empty(3, device=device))

        freed, short = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        freed.untyped_storage().resize_(0)
        short.untyped_storage().resize_(4)
        for parameter, text in ((nn.Parameter(torch.empty(3, device="meta")), "is on meta, so it has no values yet"),
                                (fake("cuda"), "is on cuda:0; this version updates parameters on the CPU"),
                                (fake("cpu"), "a FakeTensor has no memory"), (freed, "has no memory"),
                                (short, "has no memory")):
            with self.subTest(text), self.assertRaisesRegex(ValueError, f"parameter layer.weight cannot.*{text}"):
                st.AdamW([("layer.weight", parameter)])

    def test_a_refused_group_is_not_added(self):
        optimizer = st.AdamW([nn.Parameter(torch.zeros(2))])
        with self.assertRaisesRegex(ValueError, "float64"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2, dtype=torch.float64))]})
        self.assertEqual(len(optimizer.param_groups), 1)

    def test_options(self):
        with drive() as folder:
            file = os.path.join(folder, "file")
            open(file, "w").close()
            cases = [
                ({"state": "fp8"}, ValueError, "state='fp8'"), ({"host_mem": 0}, ValueError, "host_mem=0"),
                ({"host_mem": 4e9}, ValueError, "host_mem=4000000000.0"),
                ({"host_mem": 1 << 70}, ValueError, "host_mem=1"),
                ({"host_mem": "4 apples"}, ValueError, "4 apples"), ({"host_mem": True}, ValueError, "host_mem=True"),
                ({"nvme": folder + "/none"}, ValueError, "does not exist"),
                ({"nvme": file}, ValueError, "not a folder"), ({"nvme": "/dev/null"}, ValueError, "not a folder"),
                ({"max_grad_norm": -1}, ValueError, "max_grad_norm"),
                ({"nonfinite": "ignore"}, ValueError, "nonfinite='ignore'"),
                ({"overlap": "both"}, ValueError, "overlap"),
                ({"overlap": "backward", "max_grad_norm": 1.0}, ValueError, "cannot be combined with max_grad_norm"),
                ({"overlap": "backward", "nonfinite": "skip"}, ValueError, "cannot be combined with nonfinite"),
                ({"threads": 0}, ValueError, "threads=0"), ({"isa": "mmx"}, ValueError, "isa='mmx'"),
                ({"io_backend": "dma"}, ValueError, "io_backend"),
                ({"capturable": True}, ValueError, "capturable=True"),
                ({"differentiable": True}, ValueError, "differentiable=True"),
                ({"host_memory": 5}, TypeError, "did you mean host_mem"),
                ({"frobnicate": 5}, TypeError, "AdamW.*frobnicate"),
            ]
            for options, kind, text in cases:
                with self.subTest(**options), self.assertRaisesRegex(kind, text):
                    st.AdamW([nn.Parameter(torch.zeros(2))], **options)
            for options in ({"host_mem": numpy.int64(1 << 28)}, {"threads": numpy.int32(2)}, {"nvme": folder.encode()},
                            {"nvme": pathlib.Path(folder)}, {"max_grad_norm": torch.tensor(1.0)}):
                with self.subTest(**options):
                    st.AdamW([nn.Parameter(torch.zeros(2))], **options)

    def test_too_little_memory_is_refused_with_both_figures(self):
        net = model()
        for name in CLASSES:
            text = r"host memory: \d+ bytes are needed.*4096 are"
            with self.subTest(name=name), self.assertRaisesRegex(Refused, text):
                getattr(st, name)(groups(net), lr=0.1, host_mem=4096, **ARGUMENTS.get(name, {}))
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        st.AdamW(net.parameters(), host_mem=4096)  # what is frozen has no state

    def test_too_little_disk_is_refused_with_both_figures(self):
        with drive() as folder:
            # Of a file with holes, so it takes no memory; its moments are more than the drive has room for.
            elements = shutil.disk_usage(folder).free // 8 + (1 << 28)
            large = nn.Parameter(torch.from_file(os.path.join(folder, "weights"), shared=True, size=elements))
            text = rf"disk {os.path.abspath(folder)}: \d+ bytes are needed.*\d+ are available"
            with self.assertRaisesRegex(Refused, text):
                st.AdamW([large], nvme=folder, host_mem="4GiB")
            os.remove(os.path.join(folder, "weights"))
            self.assertEqual(os.listdir(folder), [])

    def test_state_is_not_lost_when_a_rebuild_is_refused(self):
        net = model()
        optimizer = st.AdamW(groups(net), host_mem="16MiB")
        train(net, optimizer, 2)
        kept = copy.deepcopy(optimizer.state_dict()["state"])
        large = nn.Parameter(torch.zeros(4 << 20))
        large.grad = torch.ones(4 << 20)
        with self.assertRaises(Refused):
            optimizer.add_param_group({"params": [large]})
        self.assertEqual(len(optimizer.param_groups), 2)
        large.grad = None
        optimizer.add_param_group({"params": [large.requires_grad_(False)]})
        large.requires_grad_().grad = torch.ones(4 << 20)
        with self.assertRaises(Refused):
            optimizer.step()
        after = optimizer.state_dict()["state"]
        self.assertEqual(kept.keys(), after.keys())
        self.assertTrue(all(torch.equal(after[k][n], kept[k][n]) for k in kept for n in kept[k]))
        del optimizer.param_groups[-1]
        train(net, optimizer, 1, first=2)
        self.assertEqual(float(optimizer.state[net.gain]["step"]), 3.0)

    def test_nonfinite_gradients(self):
        for rule in ("skip", "stop", "propagate"):
            for value in (float("inf"), float("-inf"), float("nan")):
                with self.subTest(rule=rule, value=value):
                    net = model()
                    optimizer = st.AdamW(groups(net), nonfinite=rule)
                    train(net, optimizer, 1)
                    before = copy.deepcopy(net)
                    state = copy.deepcopy(optimizer.state_dict()["state"])
                    net.loss(batch(1)).backward()
                    net.blocks[0].down.bias.grad[-1] = value
                    if rule == "stop":
                        with self.assertRaises(NonfiniteGradient):
                            optimizer.step()
                    else:
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore", RuntimeWarning)
                            optimizer.step()
                    if rule == "propagate":
                        self.assertFalse(torch.isfinite(net.blocks[0].down.bias[-1]))
                        continue
                    self.assertEqual(same_bits(net, before), [])
                    after = optimizer.state_dict()["state"]
                    self.assertTrue(all(torch.equal(after[k][n], state[k][n]) for k in after for n in after[k]))
                    if rule == "skip":
                        self.assertFalse(optimizer.last_step.applied)
                        self.assertEqual(optimizer.last_step.nonfinite, 1)
                    optimizer.zero_grad()
                    train(net, optimizer, 1, first=2)
                    self.assertTrue(optimizer.last_step.applied)

    def test_ten_skips_in_a_row_end_the_run(self):
        parameter = nn.Parameter(torch.zeros(3))
        optimizer = st.AdamW([parameter], nonfinite="skip")
        with warnings.catch_warnings(record=True) as told, self.assertRaisesRegex(RuntimeError, "10 steps in a row"):
            warnings.simplefilter("always")
            for _ in range(20):
                parameter.grad = torch.full((3,), float("nan"))
                optimizer.step()
        self.assertEqual(optimizer.skipped_steps, 10)
        self.assertEqual(len(told), 4)  # at 1, 2, 4, 8

    def test_copies(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        train(net, optimizer, 1)
        for copying in (copy.deepcopy, copy.copy, pickle.dumps):
            with self.assertRaisesRegex(TypeError, "save state_dict"):
                copying(optimizer)


# The child ends through atexit and the end of the interpreter, while the parent's update is under way.
FORKING = """
import os, sys
from torch_support import *
with drive() as folder:
    least, _ = budgets("AdamW", {}, folder)
    net = model(rows=ROWS)
    optimizer = st.AdamW(groups(net), nvme=folder, host_mem=least, overlap="forward")
    net.loss(batch(0)).backward()
    optimizer.step()
    pid = os.fork()
    if pid == 0:
        sys.exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.makedirs(folder, exist_ok=True)  # which the child's end took away, though not the unnamed file in it
    optimizer.zero_grad()
    train(net, optimizer, 1, first=1)
    print("parent goes on")
"""


class Around(unittest.TestCase):
    def test_models_can_be_copied_and_pickled(self):
        for overlap in (None, "forward", "backward"):
            with self.subTest(overlap=overlap):
                net = model()
                optimizer = st.AdamW(groups(net), overlap=overlap)
                train(net, optimizer, 2)
                clones = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
                for clone in clones:
                    self.assertEqual(same_bits(clone, net), [])
                    clone.loss(batch(0)).backward()
                    clone.state_dict()
                    own = st.AdamW(groups(clone), overlap=overlap)
                    train(clone, own, 1)
                train(net, optimizer, 1, first=2)

    def test_data_loader_workers(self):
        data = torch.utils.data.TensorDataset(torch.cat([batch(k) for k in range(4)]))
        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            for context in ("fork", "spawn"):
                net = model(rows=ROWS)
                optimizer = st.AdamW(groups(net), nvme=folder, host_mem=least, overlap="forward")
                train(net, optimizer, 1)
                loader = torch.utils.data.DataLoader(data, batch_size=3, num_workers=2, multiprocessing_context=context)
                seen = 0
                for tokens, in loader:
                    net.loss(tokens).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    seen += 1
                optimizer.wait()
                self.assertEqual(seen, 4)
                self.assertEqual(float(optimizer.state[net.gain]["step"]), 5.0)

    def test_a_forked_child_is_refused_and_does_no_harm(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        train(net, optimizer, 1)
        answers = multiprocessing.get_context("fork").Queue()

        def child():
            try:
                net.loss(batch(1)).backward()
                optimizer.step()
                answers.put("no error")
            except RuntimeError as error:
                answers.put(str(error))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        self.assertIn("forked child", answers.get(timeout=60))
        process.join(60)
        self.assertEqual(process.exitcode, 0)
        train(net, optimizer, 1, first=1)

    def test_a_forked_child_may_exit_like_any_program(self):
        path = [os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))})
        self.assertEqual((done.returncode, done.stdout), (0, "child 7\nparent goes on\n"), done.stderr)

    def test_a_forked_child_may_drop_it_and_exit(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        train(net, optimizer, 1)
        pid = os.fork()
        if pid == 0:
            del optimizer, net
            gc.collect()
            os._exit(7)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 7)
        train(net, optimizer, 1, first=1)

    def test_an_interrupt_while_waiting_loses_nothing(self):
        def interrupt(_, frame):
            if frame.f_code.co_name == "wait":
                signal.setitimer(signal.ITIMER_REAL, 0)
                raise KeyboardInterrupt

        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            nets, interrupted = [], 0
            before = signal.signal(signal.SIGALRM, interrupt)
            try:
                for interval in (0, 0.004):
                    net = model(rows=ROWS)
                    optimizer = st.AdamW(groups(net), lr=1e-3, nvme=folder, host_mem=least)
                    for step in range(6):
                        net.loss(batch(step)).backward()
                        signal.setitimer(signal.ITIMER_REAL, interval, interval)
                        try:
                            optimizer.step()
                        except KeyboardInterrupt:
                            interrupted += 1
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        optimizer.zero_grad(set_to_none=False)  # waits for the update, which goes on
                        optimizer.zero_grad()
                    optimizer.wait()
                    nets.append(net)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            self.assertGreater(interrupted, 0)
            self.assertEqual(same_bits(*nets), [])

    def test_an_interrupt_while_memory_is_taken_loses_nothing(self):
        """What the native constructor does then is tested with it; here it comes once to nothing."""
        interrupted = unittest.mock.patch("spillway._core.TensorOptimizer", side_effect=KeyboardInterrupt)
        nets = []
        for disturbed in (False, True):
            net = model()
            optimizer = st.AdamW(groups(net), lr=1e-3)
            if disturbed:
                net.loss(batch(0)).backward()
                with interrupted, self.assertRaises(KeyboardInterrupt):
                    optimizer.step()
                optimizer.zero_grad()
            train(net, optimizer, 2)
            saved = copy.deepcopy(optimizer.state_dict())
            optimizer = st.AdamW(groups(net), lr=1e-3)
            if disturbed:
                with interrupted, self.assertRaises(KeyboardInterrupt):
                    optimizer.load_state_dict(saved)  # its values wait for the next step
            else:
                optimizer.load_state_dict(saved)
            train(net, optimizer, 2, first=2)
            nets.append(net)
        self.assertEqual(same_bits(*nets), [])

    def test_every_io_backend_gives_the_same_bits(self):
        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            nets = {}
            for name in spillway.io_backends():
                net = model(rows=ROWS)
                optimizer = st.AdamW(groups(net), nvme=folder, host_mem=least, io_backend=name)
                try:
                    train(net, optimizer, 2)
                except OSError as error:  # not on this machine
                    self.assertIn(name, str(error))
                    continue
                if name != "auto":
                    self.assertEqual(optimizer._engine.native.io_backend, name)
                nets[name] = net
            self.assertIn("threads", nets)
            for net in nets.values():
                self.assertEqual(same_bits(net, nets["threads"]), [])

    def test_fifty_optimizers_leave_nothing(self):
        with drive() as folder:
            net = model()
            train(net, st.AdamW(groups(net), nvme=folder, overlap="forward"), 1)
            files, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
            for _ in range(50):
                optimizer = st.AdamW(groups(net), nvme=folder, overlap="forward")
                train(net, optimizer, 1)
                gone = weakref.ref(optimizer)
                del optimizer
                self.assertIsNone(gone())  # without a garbage collection: the memory is large
            self.assertEqual(len(os.listdir("/proc/self/fd")), files)
            # Those of the update come and go; they do not add up.
            self.assertLess(len(os.listdir("/proc/self/task")), threads + len(os.sched_getaffinity(0)) + 1)


if __name__ == "__main__":
    unittest.main()
