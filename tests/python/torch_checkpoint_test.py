# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""state_dict() and load_state_dict(): both ways with torch's classes, from memory and drive, and optimizer.state."""
import collections
import gc
import io
import os

from torch_support import (CASES, ROWS, budgets, copy, distance, drive, groups, make, model, nn, same_bits, st,
                           torch, train, unittest)


def saved_and_loaded(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resident_bytes(kind):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(kind))


def files_mapped_from(folder):
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5] for line in maps if os.path.abspath(folder) in line}


def files_open_in(folder):
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.islink(link)
            and os.path.abspath(folder) in os.readlink(link)}


class WithTorch(unittest.TestCase):
    def test_a_checkpoint_of_torch_goes_on_here(self):
        for name, arguments in CASES:
            with self.subTest(name=name, **arguments):
                theirs = model()
                their_optimizer = make(torch.optim, name, theirs, arguments)
                train(theirs, their_optimizer, 5)
                ours = copy.deepcopy(theirs)
                our_optimizer = make(st, name, ours, {"lr": 9.0})
                our_optimizer.load_state_dict(saved_and_loaded(their_optimizer.state_dict()))
                self.assertEqual(our_optimizer.param_groups[0]["lr"], arguments["lr"])
                train(theirs, their_optimizer, 5, first=5)
                train(ours, our_optimizer, 5, first=5)
                self.assertLess(distance(ours, theirs), 1e-4 if name == "Lion" else 5e-6)

    def test_a_checkpoint_from_here_goes_on_in_torch(self):
        for name, arguments in CASES:
            with self.subTest(name=name, **arguments):
                ours = model()
                our_optimizer = make(st, name, ours, arguments)
                train(ours, our_optimizer, 5)
                theirs = copy.deepcopy(ours)
                their_optimizer = make(torch.optim, name, theirs, {"lr": 9.0})
                their_optimizer.load_state_dict(saved_and_loaded(our_optimizer.state_dict()))
                self.assertEqual(their_optimizer.param_groups[0]["lr"], arguments["lr"])
                train(theirs, their_optimizer, 5, first=5)
                train(ours, our_optimizer, 5, first=5)
                self.assertLess(distance(ours, theirs), 1e-4 if name == "Lion" else 5e-6)

    def test_mu_product_follows_from_the_step(self):
        net = model()
        optimizer = make(st, "NAdam", net, {"momentum_decay": 0.02})
        train(net, optimizer, 7)
        saved = saved_and_loaded(optimizer.state_dict())
        expected = 1.0
        for step in range(1, 8):
            expected *= 0.9 * (1 - 0.5 * 0.96 ** (step * 0.02))
        for values in saved["state"].values():
            self.assertEqual(list(values), ["step", "mu_product", "exp_avg", "exp_avg_sq"])
            self.assertAlmostEqual(float(values["mu_product"]) / expected, 1, places=6)

        nets = []
        for change in (lambda own: None, lambda own: own.update(mu_product=torch.tensor(0.5)),
                       lambda own: own.update(mu_product=0.5), lambda own: own.pop("mu_product")):
            changed = copy.deepcopy(saved)
            for values in changed["state"].values():
                change(values)
            other = copy.deepcopy(net)
            second = make(st, "NAdam", other, {})
            second.load_state_dict(changed)
            second.state[other.gain]["mu_product"] = torch.tensor(0.25)
            self.assertAlmostEqual(float(second.state[other.gain]["mu_product"]) / expected, 1, places=6)
            train(other, second, 2, first=7)
            nets.append(other)
        train(net, optimizer, 2, first=7)
        for other in nets:
            self.assertEqual(same_bits(other, net), [])

    def test_changed_betas_hold_for_every_step_of_mu_product(self):
        net = model()
        optimizer = make(st, "NAdam", net, {})
        train(net, optimizer, 2)
        for group in optimizer.param_groups:
            group["betas"] = (0.8, 0.999)
        before = float(optimizer.state[net.gain]["mu_product"])
        train(net, optimizer, 1, first=2)
        after = float(optimizer.state[net.gain]["mu_product"])
        share = [1 - 0.5 * 0.96 ** (step * 4e-3) for step in (1, 2, 3)]
        self.assertAlmostEqual(before, 0.9 ** 2 * share[0] * share[1], places=6)  # no step has used them yet
        self.assertAlmostEqual(after, 0.8 ** 3 * share[0] * share[1] * share[2], places=6)

    def test_the_layout_is_torchs(self):
        for name, arguments in CASES:
            if name == "Lion":
                continue
            with self.subTest(name=name, **arguments):
                dicts = []
                for library in (torch.optim, st):
                    net = model()
                    optimizer = make(library, name, net, arguments)
                    before = optimizer.state_dict()
                    train(net, optimizer, 2)
                    dicts.append((before, optimizer.state_dict()))
                for theirs, ours in zip(*dicts):
                    self.assertEqual(ours["param_groups"], theirs["param_groups"])
                    expected = [key for key in theirs["state"] if self.has_state(theirs, key)]
                    self.assertEqual(list(ours["state"]), expected)
                    for key, values in ours["state"].items():
                        self.assertEqual({k: (v.dtype, v.shape, v.stride()) for k, v in values.items()},
                                         {k: (v.dtype, v.shape, v.stride()) for k, v in theirs["state"][key].items()})

    @staticmethod
    def has_state(state_dict, key):
        """torch's Adagrad has state for frozen parameters too; here those cost nothing."""
        steps = state_dict["state"][key].get("step")
        return steps is None or float(steps) > 0 or not state_dict["param_groups"][0]["params"][FROZEN] == key

    def test_names_travel(self):
        net = nn.Linear(3, 2)
        optimizer = st.AdamW(net.named_parameters())
        self.assertEqual(optimizer.state_dict()["param_groups"][0]["param_names"], ["weight", "bias"])
        other = st.AdamW(nn.Linear(3, 2).named_parameters())
        other.load_state_dict(optimizer.state_dict())
        self.assertEqual(other.param_groups[0]["param_names"], ["weight", "bias"])

    def test_what_does_not_fit_is_refused_and_nothing_changes(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        train(net, optimizer, 2)
        good = saved_and_loaded(optimizer.state_dict())
        first = next(iter(good["state"]))

        def spoilt(change):
            bad = copy.deepcopy(good)
            change(bad)
            return bad

        cases = {
            "number of parameter groups": lambda d: d["param_groups"].pop(),
            "size of optimizer's group": lambda d: d["param_groups"][0]["params"].pop(),
            "but not exp_avg_sq": lambda d: d["state"][first].pop("exp_avg_sq"),
            "but not step": lambda d: d["state"][first].pop("step"),
            "has shape": lambda d: d["state"][first].update(exp_avg=torch.zeros(3)),
            "needed is a tensor": lambda d: d["state"][first].update(exp_avg=3.0),
        }
        for text, change in cases.items():
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, text):
                optimizer.load_state_dict(spoilt(change))
            after = optimizer.state_dict()["state"]
            self.assertTrue(all(torch.equal(after[k][n], good["state"][k][n]) for k in after for n in after[k]))

    def test_a_checkpoint_made_with_capturable_loads(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        saved = st.AdamW(groups(model())).state_dict()
        for group in saved["param_groups"]:
            group["capturable"] = True
        optimizer.load_state_dict(saved)
        train(net, optimizer, 1)
        self.assertFalse(optimizer.param_groups[0]["capturable"])

    def test_adam_and_adamw_read_each_other(self):
        net = model()
        adam = st.Adam(groups(net))
        train(net, adam, 1)
        adamw = st.AdamW(groups(net))
        adamw.load_state_dict(adam.state_dict())
        self.assertTrue(adamw.param_groups[0]["decoupled_weight_decay"])

    def test_weights_loaded_alone_are_the_masters(self):
        """A step with a rate of zero changes no weight, whatever was there before."""
        for dtype in (torch.float32, torch.bfloat16):
            net, other = model(dtype=dtype), model(seed=5, dtype=dtype)
            optimizer = st.AdamW(groups(net), lr=1e-3, weight_decay=0.0)
            train(net, optimizer, 2)
            net.load_state_dict(other.state_dict())
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            train(net, optimizer, 1, first=2)
            self.assertEqual(same_bits(net, other), [])
            parameter = net.tokens.weight
            self.assertTrue(torch.equal(optimizer.master(parameter), parameter.detach().float()))

    def test_bf16_residues_travel_and_torch_ignores_them(self):
        net = model(dtype=torch.bfloat16)
        optimizer = st.AdamW(groups(net), lr=1e-3)
        train(net, optimizer, 3)
        saved = saved_and_loaded(optimizer.state_dict())
        residue = saved["state"][0]["residue"]
        self.assertEqual(residue.dtype, torch.int16)
        self.assertTrue(residue.any())
        theirs = torch.optim.AdamW(groups(copy.deepcopy(net)), lr=1e-3)
        theirs.load_state_dict(saved)
        back = st.AdamW(groups(net), lr=1e-3)
        back.load_state_dict(theirs.state_dict())  # moments are bf16 now, and the residue is none any more
        parameter = back.param_groups[0]["params"][0]
        self.assertTrue(torch.equal(back.master(parameter), parameter.detach().float()))
        self.assertFalse(torch.equal(optimizer.master(parameter), parameter.detach().float()))


FROZEN = 1  # number of the frozen embedding in groups()


class OnADrive(unittest.TestCase):
    def test_state_dict_needs_no_memory_and_leaves_no_file(self):
        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            net = model(rows=ROWS)
            optimizer = st.AdamW(groups(net), nvme=folder, host_mem=least)
            train(net, optimizer, 1)
            before = resident_bytes("RssAnon")
            state = optimizer.state_dict()
            self.assertLess(resident_bytes("RssAnon") - before, 9 << 20)  # two buffers of 4 MiB
            self.assertEqual([names for _, _, names in os.walk(folder) if names], [])
            table = next(values for values in state["state"].values() if values["exp_avg"].shape[0] == ROWS)
            kept = table["exp_avg"]
            expected = kept.clone()
            train(net, optimizer, 1, first=1)
            del state, table, optimizer
            gc.collect()
            self.assertTrue(torch.equal(kept, expected))  # a map outlives steps, the rest and the optimizer
            self.assertEqual(len(files_mapped_from(folder)), 1)
            del kept
            gc.collect()
            self.assertEqual(files_mapped_from(folder), set())  # nor is one open, so the kernel has freed it
            self.assertEqual(files_open_in(folder), set())

    def test_a_full_drive_is_an_error_and_the_optimizer_goes_on(self):
        import resource

        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            net = model(rows=ROWS)
            optimizer = st.AdamW(groups(net), nvme=folder, host_mem=least)
            train(net, optimizer, 1)
            old = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, old[1]))
            try:
                with self.assertRaises(OSError):
                    optimizer.state_dict()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, old)
            train(net, optimizer, 1, first=1)
            self.assertEqual(len(optimizer.state_dict()["state"]), len(list(net.parameters())) - 1)

    def test_a_mapped_checkpoint_loads(self):
        with drive() as folder:
            least, half = budgets("AdamW", {}, folder)
            net = model(rows=ROWS)
            optimizer = st.AdamW(groups(net), nvme=folder, host_mem=least)
            train(net, optimizer, 2)
            path = os.path.join(folder, "checkpoint.pt")
            torch.save(optimizer.state_dict(), path)
            saved = torch.load(path, mmap=True, weights_only=True)
            other = copy.deepcopy(net)
            second = st.AdamW(groups(other), nvme=folder, host_mem=half)
            second.load_state_dict(saved)
            train(net, optimizer, 1, first=2)
            train(other, second, 1, first=2)
            self.assertEqual(same_bits(other, net), [])


class State(unittest.TestCase):
    def optimizers(self):
        """In memory, and with everything on the drive."""
        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            for offload in ({}, {"nvme": folder, "host_mem": least}):
                net = model(rows=ROWS)
                yield net, st.AdamW(groups(net), lr=1e-3, **offload)

    def test_it_is_as_torchs(self):
        for net, optimizer in self.optimizers():
            self.assertEqual(len(optimizer.state), 0)
            self.assertEqual(optimizer.state_dict()["state"], {})
            self.assertFalse(optimizer.state[net.gain])
            train(net, optimizer, 2)
            self.assertEqual(len(optimizer.state), len(list(net.parameters())) - 1)
            self.assertNotIn(net.positions.weight, optimizer.state)
            self.assertIsNone(optimizer.state.get(net.positions.weight))
            own = optimizer.state[net.table.weight]
            self.assertEqual(list(own), ["step", "exp_avg", "exp_avg_sq"])
            self.assertEqual(float(own["step"]), 2.0)
            self.assertEqual(own["exp_avg"].shape, net.table.weight.shape)
            with self.assertRaises(KeyError):
                own["momentum_buffer"]

    def test_assigning(self):
        for net, optimizer in self.optimizers():
            other = torch.optim.AdamW(groups(theirs := copy.deepcopy(net)), lr=1e-3)
            train(net, optimizer, 1)
            train(theirs, other, 1)
            values = torch.randn(net.table.weight.shape, generator=torch.Generator().manual_seed(1)) ** 2
            for state, parameter in ((optimizer.state, net.table.weight), (other.state, theirs.table.weight)):
                state[parameter]["exp_avg_sq"] = values.clone()
                state[parameter]["step"] = torch.tensor(7.0)
            train(net, optimizer, 1, first=1)
            train(theirs, other, 1, first=1)
            self.assertLess(distance(net, theirs), 1e-6)
            self.assertEqual(float(optimizer.state[net.table.weight]["step"]), 8.0)
            with self.assertRaisesRegex(ValueError, "has shape"):
                optimizer.state[net.table.weight]["exp_avg"] = torch.zeros(2)

    def test_clearing(self):
        for net, optimizer in self.optimizers():
            start = copy.deepcopy(net)
            train(net, optimizer, 3)
            net.load_state_dict(start.state_dict())
            optimizer.state = collections.defaultdict(dict)
            self.assertEqual(optimizer.state_dict()["state"], {})
            train(net, optimizer, 1)
            fresh = st.AdamW(groups(start), lr=1e-3)
            train(start, fresh, 1)
            self.assertEqual(same_bits(net, start), [])
            del optimizer.state[net.gain]
            self.assertNotIn(net.gain, optimizer.state)

    def test_keys_of_the_users_own(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        optimizer.state[net.gain]["note"] = 5
        self.assertIn(net.gain, optimizer.state)
        train(net, optimizer, 1)
        self.assertEqual(list(optimizer.state[net.gain]), ["step", "exp_avg", "exp_avg_sq", "note"])
        other = st.AdamW(groups(net))
        other.load_state_dict(optimizer.state_dict())
        self.assertEqual(other.state[net.gain]["note"], 5)
        del other.state[net.gain]["note"]
        self.assertNotIn("note", other.state[net.gain])

    def test_views_are_live_in_memory(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        train(net, optimizer, 1)
        view = optimizer.state[net.tokens.weight]["exp_avg"]
        before = view.clone()
        train(net, optimizer, 1, first=1)
        self.assertFalse(torch.equal(view, before))
        view.zero_()
        self.assertFalse(optimizer.state[net.tokens.weight]["exp_avg"].any())
        del optimizer
        gc.collect()
        view.fill_(1.0)  # it keeps its memory alive

    def test_loading_ones_own_state(self):
        for net, optimizer in self.optimizers():
            train(net, optimizer, 2)
            other = copy.deepcopy(net)
            second = st.AdamW(groups(other), lr=1e-3)
            second.load_state_dict(optimizer.state_dict())
            optimizer.load_state_dict(optimizer.state_dict())
            train(net, optimizer, 1, first=2)
            train(other, second, 1, first=2)
            self.assertEqual(same_bits(net, other), [])

    def test_adagrad_has_state_from_the_start(self):
        net = nn.Linear(3, 2)
        optimizer = st.Adagrad(net.parameters(), initial_accumulator_value=0.25)
        self.assertTrue(torch.equal(optimizer.state[net.weight]["sum"], torch.full((2, 3), 0.25)))
        self.assertEqual(float(optimizer.state_dict()["state"][0]["step"]), 0.0)

    def test_hooks(self):
        net = model()
        optimizer = st.AdamW(groups(net))
        calls = []
        optimizer.register_state_dict_pre_hook(lambda o: calls.append("before saving"))
        optimizer.register_state_dict_post_hook(lambda o, d: {**d, "extra": 1})
        optimizer.register_load_state_dict_pre_hook(lambda o, d: {k: v for k, v in d.items() if k != "extra"})
        optimizer.register_load_state_dict_post_hook(lambda o: calls.append("after loading"))
        train(net, optimizer, 1)
        saved = optimizer.state_dict()
        self.assertEqual(saved["extra"], 1)
        optimizer.load_state_dict(saved)
        self.assertEqual(calls, ["before saving", "after loading"])


class StateMoves(unittest.TestCase):
    """What programs do with `optimizer.state` beside reading it: values move, and none is lost on the way."""

    def both(self, moves):
        """`moves(optimizer, p, q)` after a step of two parameters, here and with torch's class: the same state, and
        the same weights a step later."""
        found = []
        for library in (st, torch.optim):
            p, q = (nn.Parameter(torch.full((3,), value)) for value in (1.0, 2.0))
            optimizer = library.Adam([p, q], lr=0.1)
            for number in (1.0, 2.0):
                p.grad, q.grad = torch.full((3,), number), torch.full((3,), 3 * number)
                optimizer.step()
            moves(optimizer, p, q)
            owners = optimizer.param_groups[0]["params"]
            values = [{key: value.tolist() for key, value in optimizer.state[owner].items()} for owner in owners]
            for owner in owners:
                owner.grad = torch.ones(3)
            optimizer.step()
            found.append((values, [owner.tolist() for owner in owners]))
        for ours, theirs in zip(*(sum(([*own.values()] for own in values), []) for values, _ in found), strict=True):
            self.assertAlmostEqual(torch.tensor(ours).sub(torch.tensor(theirs)).abs().max().item(), 0, places=7)
        self.assertEqual([list(own) for own in found[0][0]], [list(own) for own in found[1][0]])
        self.assertLess(torch.tensor(found[0][1]).sub(torch.tensor(found[1][1])).abs().max().item(), 1e-6)

    def test_the_whole_is_set_from_itself(self):
        def copied(optimizer, p, q):
            optimizer.state = dict(optimizer.state)
        self.both(copied)

        def copied_deeper(optimizer, p, q):
            optimizer.state = collections.defaultdict(dict, {own: dict(s) for own, s in optimizer.state.items()})
        self.both(copied_deeper)

        def exchanged(optimizer, p, q):
            optimizer.state = {p: dict(optimizer.state[q]), q: dict(optimizer.state[p])}
        self.both(exchanged)

    def test_the_whole_is_put_aside(self):
        def aside(optimizer, p, q):
            before = optimizer.state
            optimizer.state = collections.defaultdict(dict)
            self.assertEqual(len(optimizer.state), 0)
            optimizer.state = before
        self.both(aside)

        def saved(optimizer, p, q):
            state = optimizer.state_dict()
            optimizer.state.clear()
            self.assertEqual(len(optimizer.state), 0)
            optimizer.load_state_dict(state)
        self.both(saved)

    def test_one_is_taken_out_and_put_back(self):
        def cleared(optimizer, p, q):
            before = dict(optimizer.state[p])
            optimizer.state[p] = {}
            optimizer.state[p] = before
        self.both(cleared)

        def swapped(optimizer, p, q):
            optimizer.state[p], optimizer.state[q] = optimizer.state[q], optimizer.state[p]
        self.both(swapped)

        def same(optimizer, p, q):
            optimizer.state[p] = optimizer.state[p]
        self.both(same)

    def test_one_goes_to_another_parameter(self):
        def popped(optimizer, p, q):
            state, fresh = optimizer.state.pop(p), nn.Parameter(torch.ones(3))
            optimizer.param_groups[0]["params"][0] = fresh
            optimizer.state[fresh] = state
        self.both(popped)

        def replaced(optimizer, p, q):
            state = optimizer.state.get(p)
            state["exp_avg"] = torch.zeros(3)
            del optimizer.state[p]
            fresh = optimizer.param_groups[0]["params"][0] = nn.Parameter(torch.ones(3))
            optimizer.state[fresh] = state
        self.both(replaced)

    def test_what_is_cleared_starts_anew(self):
        def cleared(optimizer, p, q):
            kept = optimizer.state_dict()["state"][0]["exp_avg"]
            before = kept.clone()
            optimizer.state[p].clear() if isinstance(optimizer, torch.optim.Adam) else optimizer.state.pop(p)
            self.assertTrue(torch.equal(kept, before))
        self.both(cleared)


class DefaultTypes(unittest.TestCase):
    """torch.set_default_dtype() and torch.device() as contexts change nothing of a state."""

    def test_steps_are_not_rounded(self):
        p = nn.Parameter(torch.ones(4))
        optimizer = st.AdamW([p], lr=0.01)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            for _ in range(257):
                p.grad = torch.ones(4, dtype=torch.float32)
                optimizer.step()
            self.assertEqual(optimizer.state[p]["step"].item(), 257)
            optimizer.load_state_dict(optimizer.state_dict())
            self.assertEqual(optimizer.state[p]["step"].item(), 257)
            self.assertEqual(optimizer.state[p]["step"].dtype, torch.float32)
        finally:
            torch.set_default_dtype(before)

    def test_on_the_drive(self):
        with drive() as folder:
            p = nn.Parameter(torch.ones(1 << 22, dtype=torch.bfloat16))
            optimizer = st.Adagrad([p], lr=0.01, initial_accumulator_value=0.5, host_mem="8MiB", nvme=folder)
            p.grad = torch.ones_like(p)
            optimizer.step()
            expected, master = optimizer.state_dict()["state"][0]["sum"].clone(), optimizer.master(p)
            before = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                with torch.device("meta"):
                    self.assertTrue(torch.equal(optimizer.state_dict()["state"][0]["sum"], expected))
                    self.assertTrue(torch.equal(optimizer.master(p), master))
                    optimizer.load_state_dict(optimizer.state_dict())
                    self.assertTrue(torch.equal(optimizer.state[p]["sum"], expected))
            finally:
                torch.set_default_dtype(before)


if __name__ == "__main__":
    unittest.main()
