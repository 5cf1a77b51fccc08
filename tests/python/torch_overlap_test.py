# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The overlap modes: the synchronous mode's bits, and no way to see or use a half-written weight unnoticed."""
import gc
import os
import tempfile

from torch_support import (ROWS, WIDTH, batch, budgets, copy, drive, groups, make, model, nn, same_bits, st, torch,
                           train, unittest)


def trained(steps=6, rows=0, micro_batches=1, name="AdamW", **offload):
    net = model(rows=rows)
    optimizer = make(st, name, net, {"lr": 1e-3}, **offload)
    losses = train(net, optimizer, steps, micro_batches=micro_batches)
    return net, optimizer, losses


class Forward(unittest.TestCase):
    def test_step_returns_with_the_update_under_way(self):
        """On a drive that is slow enough, some weights are old when step() returns; modules wait for theirs."""
        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            net = model(rows=ROWS)
            optimizer = st.AdamW(groups(net), lr=1e-3, nvme=folder, host_mem=least, overlap="forward")
            flights = []
            for step in range(4):
                net.loss(batch(step)).backward()
                optimizer.step()
                flights.append(optimizer._flight is not None)
                optimizer.zero_grad()
            self.assertTrue(all(flights))
            optimizer.wait()
            self.assertIsNone(optimizer._flight)
            expected = trained(4, rows=ROWS)[0]
            self.assertEqual(same_bits(net, expected), [])

    def test_the_same_losses_and_bits(self):
        for name in ("AdamW", "SGD"):
            for micro_batches in (1, 3):
                expected, _, losses = trained(micro_batches=micro_batches, name=name)
                for overlap in ("forward", "backward"):
                    with self.subTest(name=name, overlap=overlap, micro_batches=micro_batches):
                        net, _, found = trained(micro_batches=micro_batches, name=name, overlap=overlap)
                        self.assertEqual(found, losses)
                        self.assertEqual(same_bits(net, expected), [])

    def test_evaluation_and_saving_wait(self):
        expected, other, _ = trained(3)
        for look in ("state_dict", "eval", "optimizer"):
            with self.subTest(look=look):
                net = model()
                optimizer = make(st, "AdamW", net, {"lr": 1e-3}, overlap="forward")
                for step in range(3):
                    net.loss(batch(step)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                if look == "state_dict":
                    found, wanted = net.state_dict(), expected.state_dict()
                    self.assertTrue(all(torch.equal(found[k], wanted[k]) for k in wanted))
                elif look == "eval":
                    with torch.no_grad():
                        self.assertEqual(net.loss(batch(9)).item(), expected.loss(batch(9)).item())
                else:
                    a, b = optimizer.state_dict()["state"], other.state_dict()["state"]
                    self.assertTrue(all(torch.equal(a[k][n], b[k][n]) for k in b for n in b[k]))
                self.assertIsNone(optimizer._flight)

    def test_weights_used_outside_of_their_modules_are_waited_for_in_step(self):
        class Outside(nn.Module):
            def __init__(self):
                super().__init__()
                self.inside, self.outside = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                return nn.functional.linear(self.inside(x), self.outside.weight)

        results = []
        for overlap in (None, "forward"):
            torch.manual_seed(0)
            net = Outside()
            optimizer = st.AdamW(net.parameters(), overlap=overlap)
            for _ in range(4):
                net(torch.ones(WIDTH)).square().sum().backward()
                optimizer.step()
                if overlap:
                    self.assertFalse(optimizer._flight.holds(net.outside.weight))
                optimizer.zero_grad()
            optimizer.wait()
            results.append(net)
        self.assertEqual(same_bits(*results), [])

    def test_a_weight_that_only_later_is_used_outside_is_an_error(self):
        net = nn.Linear(WIDTH, WIDTH)
        optimizer = st.AdamW(net.parameters(), overlap="forward")
        for _ in range(2):
            net(torch.ones(WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with self.assertRaisesRegex(RuntimeError, "may have been read half written"):
            nn.functional.linear(torch.ones(WIDTH), net.weight).sum().backward()
        optimizer.wait()
        net.zero_grad()
        nn.functional.linear(torch.ones(WIDTH), net.weight).sum().backward()
        optimizer.step()

    def test_changes_behind_the_updates_back_are_an_error(self):
        changes = {
            "gradient of parameter 0 of group 0 was changed": lambda net: net.weight.grad.zero_(),
            "parameter 0 of group 0 was changed": lambda net: net.weight.detach().zero_(),
        }
        for text, change in changes.items():
            with self.subTest(text=text):
                net = nn.Linear(WIDTH, WIDTH)
                optimizer = st.AdamW(net.parameters(), overlap="forward")
                net(torch.ones(WIDTH)).sum().backward()
                optimizer.step()
                change(net)
                with self.assertRaisesRegex(RuntimeError, text):
                    optimizer.wait()

    def test_gradients_are_kept_until_the_update_is_over(self):
        with drive() as folder:
            least, _ = budgets("AdamW", {}, folder)
            expected = trained(3, rows=ROWS)[0]
            net = model(rows=ROWS)
            optimizer = make(st, "AdamW", net, {"lr": 1e-3}, nvme=folder, host_mem=least, overlap="forward")
            for step in range(3):
                net.loss(batch(step)).backward()
                optimizer.step()
                optimizer.zero_grad()
                gc.collect()
                junk = [torch.full((ROWS, WIDTH), 1e9) for _ in range(4)]  # what was freed would be overwritten
                del junk
            optimizer.wait()
            self.assertEqual(same_bits(net, expected), [])

    def test_hooks_go_with_the_optimizer(self):
        registered = nn.modules.module._global_forward_pre_hooks
        before = len(registered)
        net = model()
        optimizer = st.AdamW(groups(net), overlap="forward")
        train(net, optimizer, 2)
        self.assertEqual(len(registered), before + 1)
        del optimizer
        self.assertEqual(len(registered), before)
        net.loss(batch(0)).backward()
        net.state_dict()
        self.assertFalse(net.gain._post_accumulate_grad_hooks)


class Backward(unittest.TestCase):
    def test_weights_change_inside_the_last_micro_batch(self):
        net = model()
        optimizer = st.AdamW(groups(net), lr=1e-3, overlap="backward")
        train(net, optimizer, 1)
        before = copy.deepcopy(net)
        net.loss(batch(1)).backward()
        self.assertEqual(same_bits(net, before), [])
        with optimizer.last_micro_batch():
            net.loss(batch(2)).backward()
        with self.assertRaisesRegex(RuntimeError, r"call step\(\) first"):
            optimizer.state_dict()
        optimizer.step()
        self.assertIn("tokens.weight", same_bits(net, before))
        expected = st.AdamW(groups(before), lr=1e-3)
        expected.load_state_dict(optimizer.state_dict())
        self.assertEqual(float(expected.state[before.gain]["step"]), 2.0)

    def test_without_the_mark_step_does_it_all(self):
        expected = trained(4)[0]
        net = model()
        optimizer = make(st, "AdamW", net, {"lr": 1e-3}, overlap="backward")
        for step in range(4):
            net.loss(batch(step)).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e9)
            optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(same_bits(net, expected), [])

    def test_gradients_changed_after_they_were_given_are_an_error(self):
        def clip(net, optimizer):
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)

        def replace(net, optimizer):
            net.gain.grad = torch.zeros(())

        for change in (clip, replace):
            net = model()
            optimizer = st.AdamW(groups(net), overlap="backward")
            with optimizer.last_micro_batch():
                net.loss(batch(0)).backward()
            change(net, optimizer)
            with self.assertRaisesRegex(RuntimeError, "changed after its update had used it.*clipping"):
                optimizer.step()

    def test_two_backward_passes_in_the_last_micro_batch_are_an_error(self):
        net = model()
        optimizer = st.AdamW(groups(net), overlap="backward")
        with self.assertRaisesRegex(RuntimeError, "added to after it had been used"):
            with optimizer.last_micro_batch():
                net.loss(batch(0)).backward()
                net.loss(batch(1)).backward()

    def test_stale_values_in_the_graph_are_noticed(self):
        first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        optimizer = st.SGD([first, second], lr=0.1, overlap="backward")
        product = (second * 2 * first.detach()).sum()  # its backward pass needs the value of `first`
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            with optimizer.last_micro_batch():
                (first * 5).sum().backward()
                product.backward()

    def test_an_error_in_backward_leaves_the_optimizer_usable(self):
        net = model()
        optimizer = st.AdamW(groups(net), overlap="backward")

        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                raise ArithmeticError("no")

        with self.assertRaises(ArithmeticError):
            with optimizer.last_micro_batch():
                net.head(net.norm(Failing.apply(net.tokens(batch(0))))).sum().backward()
        optimizer.zero_grad()
        train(net, optimizer, 2)

    def test_frozen_and_late_parameters(self):
        results = []
        for overlap in (None, "backward"):
            net = model()
            optimizer = make(st, "AdamW", net, {"lr": 1e-3}, overlap=overlap)

            def freeze(step):
                net.blocks[0].up.weight.requires_grad_(step not in (1, 2))

            freeze(1)
            train(net, optimizer, 5, before_step=freeze)
            results.append(net)
        self.assertEqual(same_bits(*results), [])

    def test_a_parameter_unfrozen_inside_the_last_micro_batch_is_an_error(self):
        net = model()
        optimizer = st.AdamW(net.named_parameters(), lr=1e-3, overlap="backward")
        train(net, optimizer, 1)
        with optimizer.last_micro_batch():
            net.positions.weight.requires_grad_(True)
            net.loss(batch(1)).backward()
        with self.assertRaisesRegex(RuntimeError, "positions.weight has a gradient that was not used"):
            optimizer.step()
        optimizer.zero_grad()
        train(net, optimizer, 1, first=2)
        self.assertEqual(float(optimizer.state[net.gain]["step"]), 3.0)
        self.assertEqual(float(optimizer.state[net.positions.weight]["step"]), 1.0)

    def test_a_parameter_that_left_its_group(self):
        for overlap in ("forward", "backward"):
            net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            optimizer = st.AdamW([{"params": net[0].parameters()}, {"params": net[1].parameters()}], overlap=overlap)
            for step in range(4):
                with optimizer.last_micro_batch():
                    net(torch.ones(4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 1:
                    del optimizer.param_groups[1]
                    optimizer.wait()
                    kept = copy.deepcopy(net[1])
            optimizer.wait()
            self.assertEqual(same_bits(net[1], kept), [])

    def test_several_ranks_are_refused(self):
        net = model()
        optimizer = st.AdamW(groups(net), overlap="backward")
        size = torch.distributed.get_world_size
        with tempfile.TemporaryDirectory() as folder:
            torch.distributed.init_process_group("gloo", init_method=f"file://{os.path.join(folder, 'store')}", rank=0,
                                                 world_size=1)
            try:
                with optimizer.last_micro_batch():
                    net.loss(batch(0)).backward()
                optimizer.step()
                torch.distributed.get_world_size = lambda *_: 2
                with self.assertRaisesRegex(RuntimeError, "several ranks"):
                    with optimizer.last_micro_batch():
                        self.fail("it was entered")
            finally:
                torch.distributed.get_world_size = size
                torch.distributed.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
