# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Averages of the weights inside the step, against torch.optim.swa_utils.AveragedModel and wherever they lie."""
import torch_support  # noqa: F401  first, since it skips the test where torch is missing
import copy
import io
import itertools

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_support import ROWS, budgets, distance, drive, groups, model, same_bits, st, torch, train, unittest

STEPS = 5


def averaged_model(net, optimizer):
    averaged = copy.deepcopy(net)
    optimizer.copy_averages(net, averaged)
    return averaged


class TorchAverage(unittest.TestCase):
    def test_they_are_torchs(self):
        for name, arguments in (("AdamW", {"lr": 3e-3}), ("SGD", {"lr": 0.05}), ("LAMB", {"lr": 0.02})):
            for average, every, function in (("ema:0.75", 1, get_ema_multi_avg_fn(0.75)), ("swa:2", 2, None)):
                with self.subTest(name=name, average=average):
                    net = model()
                    optimizer = getattr(st, name)(groups(net), **arguments, average=average)
                    expected = AveragedModel(net, multi_avg_fn=function)
                    for step in range(STEPS):
                        train(net, optimizer, 1, first=step)
                        if (step + 1) % every == 0:
                            expected.update_parameters(net)
                    found = averaged_model(net, optimizer)
                    self.assertLess(distance(found, expected.module), 1e-6)
                    self.assertGreater(distance(found, net), 1e-4)
                    trained = [p for p in net.parameters() if p.requires_grad]
                    self.assertEqual({id(p) for p, _ in optimizer.averages()}, {id(p) for p in trained})

    def test_of_a_bf16_parameter_the_master_is_averaged(self):
        net = model(dtype=torch.bfloat16)
        optimizer = st.AdamW(net.parameters(), lr=3e-3, average="ema:0.5")
        expected = {}
        for step in range(3):
            train(net, optimizer, 1, first=step)
            for p in net.parameters():
                if p.requires_grad:
                    master = optimizer.master(p)
                    expected[p] = master if step == 0 else expected[p].lerp(master, 0.5)
        for p, average in optimizer.averages():
            self.assertEqual(average.dtype, torch.float32)
            torch.testing.assert_close(average, expected[p], rtol=1e-6, atol=1e-8)
        averaged = averaged_model(net, optimizer)
        torch.testing.assert_close(averaged.gain, expected[net.gain].to(torch.bfloat16))

    def test_places_and_modes_give_the_same_bits(self):
        name, arguments = "AdamW", {"lr": 3e-3, "average": "ema:0.75", "state": "bf16"}
        with drive() as folder:
            least, half = budgets(name, arguments, folder)
            reference = model(rows=ROWS)
            optimizer = st.AdamW(groups(reference), **arguments)
            train(reference, optimizer, 2)
            expected = averaged_model(reference, optimizer)
            for offload in ({"host_mem": least}, {"host_mem": half}, {"host_mem": least, "overlap": "forward"},
                            {"host_mem": least, "overlap": "backward"}):
                with self.subTest(**offload):
                    net = model(rows=ROWS)
                    optimizer = st.AdamW(groups(net), **arguments, nvme=folder, **offload)
                    train(net, optimizer, 2)
                    self.assertEqual(same_bits(averaged_model(net, optimizer), expected), [])
                    self.assertEqual(same_bits(net, reference), [])
                    self.assertGreater(optimizer.statistics()["nvme_read_bytes"], 0)
                    saved = optimizer.state_dict()["state"][0]
                    self.assertEqual(float(saved["averaged"]), 2)
                    self.assertTrue(torch.equal(saved["average"], next(optimizer.averages())[1]))
                    del optimizer, saved

    def test_they_come_back_from_a_checkpoint(self):
        for name, arguments in (("AdamW", {"lr": 3e-3}), ("SGD", {"lr": 0.05}), ("Lion", {"lr": 1e-3}),
                                ("Adagrad", {"lr": 0.02})):
            for average in ("ema:0.75", "swa:2"):
                with self.subTest(name=name, average=average):
                    nets = []
                    for interrupted in (False, True):
                        net = model()
                        optimizer = getattr(st, name)(groups(net), **arguments, average=average)
                        train(net, optimizer, 3)
                        if interrupted:
                            file = io.BytesIO()
                            torch.save(optimizer.state_dict(), file)
                            file.seek(0)
                            optimizer = getattr(st, name)(groups(net), **arguments, average=average)
                            optimizer.load_state_dict(torch.load(file))
                        train(net, optimizer, 2, first=3)
                        nets.append((net, averaged_model(net, optimizer)))
                    self.assertEqual(same_bits(nets[0][0], nets[1][0]), [])
                    self.assertEqual(same_bits(nets[0][1], nets[1][1]), [])

    def test_a_checkpoint_from_before_the_first_step_loads(self):
        for name in ("AdamW", "Adagrad"):
            net = model()
            optimizer = getattr(st, name)(groups(net), lr=0.02, average="ema:0.5")
            optimizer.load_state_dict(optimizer.state_dict())
            self.assertEqual(list(optimizer.averages()), [])
            train(net, optimizer, 1)
            for p, average in optimizer.averages():
                self.assertTrue(torch.equal(average, p))

    def test_momentum_that_comes_later_leaves_it_alone(self):
        nets, expected = [], None
        for average in (None, "swa:2"):
            net = model()
            optimizer = st.SGD(groups(net), lr=0.05, **({} if average is None else {"average": average}))
            expected = AveragedModel(net)
            for step in range(6):
                if step == 3:
                    for group in optimizer.param_groups:
                        group["momentum"] = 0.9
                train(net, optimizer, 1, first=step)
                if step % 2:
                    expected.update_parameters(net)
            nets.append(net)
        self.assertEqual(same_bits(*nets), [])
        found = averaged_model(net, optimizer)
        self.assertLess(distance(found, expected.module), 1e-6)
        self.assertGreater(distance(found, net), 1e-4)

    def test_momentum_that_comes_later_with_dampening_is_refused(self):
        net = model()
        optimizer = st.SGD(groups(net), lr=0.05, average="ema:0.5")
        train(net, optimizer, 2)
        before = averaged_model(net, optimizer)
        optimizer.param_groups[0].update(momentum=0.9, dampening=0.5)
        with self.assertRaisesRegex(ValueError, "updated 2 times without momentum.*dampening=0.5 now.*dampening=0:"):
            train(net, optimizer, 1, first=2)
        self.assertEqual(same_bits(averaged_model(net, optimizer), before), [])
        optimizer.param_groups[0]["dampening"] = 0
        optimizer.step()
        self.assertGreater(distance(averaged_model(net, optimizer), before), 1e-6)

    def test_of_state_that_is_set_without_one_it_begins_with_the_weights(self):
        cases = (("AdamW", {"lr": 3e-3}), ("Lion", {"lr": 1e-3}), ("LARS", {"lr": 2.0}))
        for (name, arguments), dtype in itertools.product(cases, (torch.float32, torch.bfloat16)):
            with self.subTest(name=name, dtype=dtype):
                net = model(dtype=dtype)
                donor = getattr(st, name)(groups(net), **arguments)
                train(net, donor, 2)
                optimizer = getattr(st, name)(groups(net), **arguments, average="ema:0.75")
                p = net.tokens.weight
                optimizer.state[p] = donor.state[p]
                before = optimizer.master(p)
                if dtype is torch.float32:
                    p.data = p.data.t().contiguous().t()  # elsewhere, in another order
                self.assertTrue(torch.equal(dict(optimizer.averages())[p], before))
                again = getattr(st, name)(groups(net), **arguments, average="ema:0.75")
                again.load_state_dict(optimizer.state_dict())
                self.assertTrue(torch.equal(dict(again.averages())[p], before))
                train(net, optimizer, 1, first=2)
                expected = before.lerp(optimizer.master(p), 0.25)
                torch.testing.assert_close(dict(optimizer.averages())[p], expected, rtol=1e-6, atol=1e-8)
                optimizer.state[p].clear()
                self.assertNotIn(p, dict(optimizer.averages()))

    def test_one_that_is_given_before_its_count_stays(self):
        net = model()
        optimizer = st.AdamW(groups(net), average="swa:2")
        given = torch.full_like(net.norm.weight, 7.0)
        optimizer.state[net.norm.weight]["average"] = given
        optimizer.state[net.norm.weight]["averaged"] = 4
        self.assertTrue(torch.equal(dict(optimizer.averages())[net.norm.weight], given))

    def test_a_group_that_comes_later_begins_with_its_first_update(self):
        net = model()
        first, *others = groups(net)
        optimizer = st.AdamW([first], lr=3e-3, average="ema:0.5")
        train(net, optimizer, 2)
        optimizer.add_param_group(others[0])
        train(net, optimizer, 1, first=2)
        averages = dict(optimizer.averages())
        self.assertTrue(torch.equal(averages[net.gain], net.gain))
        self.assertFalse(torch.equal(averages[net.tokens.weight], net.tokens.weight))

    def test_refusals(self):
        for average, words in (("ema:2", "average='ema:2'.*decay"), ("swa:0", "at least 1"), ("polyak", "ema:DECAY")):
            with self.subTest(average=average), self.assertRaisesRegex(ValueError, words):
                st.AdamW(model().parameters(), average=average)
        net = model()
        optimizer, without = st.AdamW(groups(net), average="swa:3"), st.AdamW(groups(net))
        train(net, optimizer, 1)
        self.assertEqual(list(optimizer.averages()), [])
        self.assertEqual(same_bits(averaged_model(net, optimizer), net), [])
        with self.assertRaisesRegex(ValueError, "that of source"):
            optimizer.copy_averages(net, net)
        with self.assertRaisesRegex(ValueError, "other parameters"):
            optimizer.copy_averages(net, net.head)
        with self.assertRaisesRegex(RuntimeError, "keeps no averages"):
            list(without.averages())
        with self.assertRaisesRegex(ValueError, "keeps none"):
            without.load_state_dict(optimizer.state_dict())
        sooner = st.AdamW(groups(net), average="swa:1")
        with self.assertRaisesRegex(ValueError, '"averaged": 1 but no "average".*after 1 updates.*"swa:1"'):
            sooner.load_state_dict(optimizer.state_dict())
        train(net, without, 1, first=1)
        with self.assertRaisesRegex(ValueError, "has no average"):
            optimizer.load_state_dict(without.state_dict())


if __name__ == "__main__":
    unittest.main()
