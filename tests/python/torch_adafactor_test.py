# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Adafactor, whose state is no value for each element: its shapes, on the drive, through checkpoints. That it follows
torch's is for torch_parity_test.py and torch_checkpoint_test.py."""
import inspect

from torch_support import ROWS, batch, budgets, drive, groups, model, nn, same_bits, st, torch, unittest

SHAPES = [(5, 7), (3,), (), (2, 3, 4, 5), (0, 6), (4, 0, 3), (1, 9), (300, 200)]


def parameters(seed=0):
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def step(optimizer, given, seed):
    torch.manual_seed(100 + seed)
    for parameter in given:
        parameter.grad = torch.randn(parameter.shape) * 10.0 ** (seed % 5 - 3)
    optimizer.step()


def trained(dtype, steps, **offload):
    net = model(dtype=dtype, rows=ROWS)
    optimizer = st.Adafactor(groups(net), lr=0.02, **offload)
    for number in range(steps):
        net.loss(batch(number)).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.wait()
    return net, optimizer


class Adafactor(unittest.TestCase):
    def test_signature_is_torchs(self):
        theirs = inspect.signature(torch.optim.Adafactor).parameters
        ours = inspect.signature(st.Adafactor).parameters
        for name, parameter in theirs.items():
            self.assertEqual((ours[name].default, ours[name].kind), (parameter.default, parameter.kind), name)

    def test_tensors_of_every_shape(self):
        ours, theirs = parameters(), parameters()
        taken = [parameter for parameter in theirs if parameter.numel()]  # torch divides by the number of elements
        optimizers = [st.Adafactor(ours, maximize=True), torch.optim.Adafactor(taken, maximize=True)]
        for number in range(12):
            for optimizer, given in zip(optimizers, (ours, theirs)):
                step(optimizer, given, number)
        self.assertEqual(optimizers[0].state[ours[4]]["row_var"].shape, (0, 1))
        for a, b in zip(ours, theirs):
            with self.subTest(shape=tuple(a.shape)):
                self.assertEqual(a.isnan().sum(), 0)
                gap = (a - b).detach().norm()
                self.assertLess(float(gap), 3e-6 * float(b.detach().norm()) + 1e-30)
                for key, value in optimizers[1].state[b].items() if a.numel() else ():
                    found = optimizers[0].state[a][key]
                    self.assertEqual(found.shape, value.shape)
                    self.assertLess(float((found - value).norm()), 1e-5 * float(value.norm()) + 1e-30)

    def test_state_is_read_written_and_cleared(self):
        first, second = parameters(), parameters()
        optimizer = st.Adafactor(first)
        step(optimizer, first, 0)
        copy = st.Adafactor(second)
        step(copy, second, 1)  # of another state, which is overwritten
        with torch.no_grad():
            for a, b in zip(first, second):
                b.copy_(a)
        for a, b in zip(first, second):
            copy.state[b] = dict(optimizer.state[a])
        for given, own in ((first, optimizer), (second, copy)):
            step(own, given, 2)
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(first, second)))
        matrix = first[0]
        self.assertEqual(list(optimizer.state[matrix]), ["step", "row_var", "col_var"])
        self.assertEqual(list(optimizer.state[first[1]]), ["step", "variance"])
        with self.assertRaisesRegex(ValueError, r"row_var.*\(5, 7\).*needed is \(5, 1\)"):
            optimizer.state[matrix]["row_var"] = torch.zeros(5, 7)
        del optimizer.state[matrix]
        self.assertNotIn(matrix, optimizer.state)
        fresh = nn.Parameter(matrix.detach().clone())
        other = st.Adafactor([fresh])
        fresh.grad = matrix.grad = torch.ones(5, 7)
        for parameter in first[1:]:
            parameter.grad = None
        optimizer.step()
        other.step()
        self.assertTrue(torch.equal(fresh, matrix))

    def test_residues_on_the_drive_and_back_from_a_checkpoint(self):
        expected, first = trained(torch.bfloat16, 3)
        with drive() as folder:
            least, _ = budgets("Adafactor", {}, folder, torch.bfloat16)
            net, optimizer = trained(torch.bfloat16, 2, nvme=folder, host_mem=least, chunk_size="64KiB")
            self.assertGreater(optimizer.statistics()["nvme_read_bytes"], optimizer.statistics()["nvme_written_bytes"])
            again = st.Adafactor(groups(net), lr=1.0, nvme=folder, host_mem=least)
            again.load_state_dict(optimizer.state_dict())
            net.loss(batch(2)).backward()
            again.step()
            self.assertEqual(same_bits(net, expected), [])
            state, theirs = again.state_dict()["state"], first.state_dict()["state"]
            for key, values in theirs.items():
                for name, value in values.items():
                    self.assertTrue(torch.equal(state[key][name], value), (key, name))
            del optimizer, again

    def test_a_modules_step_in_overlap_modes(self):
        expected, _ = trained(torch.float32, 3)
        self.assertEqual(same_bits(trained(torch.float32, 3, overlap="forward")[0], expected), [])

    def test_refusals(self):
        transposed = nn.Parameter(torch.randn(4, 6).t())
        with self.assertRaisesRegex(ValueError, "rows and columns.*contiguous"):
            st.Adafactor([transposed])
        with self.assertRaisesRegex(ValueError, "Adafactor.*int8"):
            st.Adafactor([nn.Parameter(torch.zeros(3, 3))], state="int8")
        for arguments, words in (({"d": 0.5}, "Clipping threshold d"), ({"beta2_decay": 0.1}, "beta2_decay"),
                                 ({"lr": -1.0}, "lr|earning rate"), ({"weight_decay": -1.0}, "weight_decay")):
            with self.subTest(**arguments), self.assertRaisesRegex(ValueError, words):
                st.Adafactor([nn.Parameter(torch.zeros(3))], **arguments)


if __name__ == "__main__":
    unittest.main()
