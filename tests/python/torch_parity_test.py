# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""spillway.torch against torch's own optimizers over 100 steps of a small transformer.

The bound. One update of either library rounds a few fp32 operations, each off by at most 2^-24 of its result. A
weight moves by about the learning rate, so the two differ after a step by a few roundings of the weight (6e-8 of it)
and of the movement. The difference then feeds back through the gradients, which the loss amplifies by a small
factor. 1e-6 relative in L2 per ten steps is some ten roundings a step; a wrong term (decay, bias correction, a
missing root) is orders of magnitude above it, which a test here shows. Lion takes the sign, so that a difference that
is zero but for rounding moves a weight by the whole rate, up or down: it is compared on given gradients.
"""
from torch_support import CASES, distance, groups, make, model, nn, st, torch, train, unittest

PER_TEN_STEPS = 1e-6
STEPS = 100


def run(library, name, arguments, steps=STEPS, **offload):
    """Groups, a schedule, two micro-batches, clipping, and a tensor that is frozen from step 30 to step 60."""
    net = model()
    optimizer = make(library, name, net, arguments, **offload)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    frozen = net.blocks[0].up.weight

    def freeze(step):
        frozen.requires_grad_(not 30 <= step + 1 < 60)

    train(net, optimizer, steps, micro_batches=2, clip=1.0, schedule=schedule, before_step=freeze)
    return net, optimizer


class Parity(unittest.TestCase):
    def test_every_class_stays_within_the_bound(self):
        for name, arguments in CASES:
            if name == "Lion":
                continue
            with self.subTest(name=name, **arguments):
                theirs, _ = run(torch.optim, name, arguments)
                ours, optimizer = run(st, name, arguments)
                bound = PER_TEN_STEPS * STEPS / 10
                found = distance(ours, theirs)
                print(f"{name} {arguments}: {found:.1e} of {bound:.0e}")
                self.assertLess(found, bound)
                untouched = model().positions.weight
                self.assertTrue(torch.equal(ours.positions.weight, untouched))
                self.assertNotIn(ours.positions.weight, optimizer.state)

    def test_every_class_on_given_gradients(self):
        for name, arguments in CASES:
            with self.subTest(name=name, **arguments):
                torch.manual_seed(7)
                start = torch.randn(200, 31)
                pair = [nn.Parameter(start.clone()) for _ in range(2)]
                optimizers = [make(library, name, _Holder(p), arguments) for library, p in zip((st, torch.optim), pair)]
                for step in range(STEPS):
                    gradient = torch.randn(200, 31) * 10.0 ** (step % 8 - 5)  # 1e-5 to 1e2, of either sign
                    for parameter, optimizer in zip(pair, optimizers):
                        parameter.grad = gradient.clone()
                        optimizer.step()
                gap = float((pair[0] - pair[1]).norm() / pair[1].norm())
                print(f"{name} {arguments}: {gap:.1e}")
                self.assertLess(gap, PER_TEN_STEPS * STEPS / 10)

    def test_the_bound_notices_a_wrong_term(self):
        for wrong in ({"weight_decay": 0.1001}, {"betas": (0.9, 0.9991)}, {"eps": 2e-6}, {"lr": 3.001e-3}):
            with self.subTest(**wrong):
                right = {"lr": 3e-3, "weight_decay": 0.1, "eps": 1e-6}
                theirs, _ = run(torch.optim, "AdamW", right, steps=30)
                ours, _ = run(st, "AdamW", {**right, **wrong}, steps=30)
                self.assertGreater(distance(ours, theirs), PER_TEN_STEPS * 3)

    def test_clipping_inside_equals_clipping_outside(self):
        outside, inside = model(), model()
        train(outside, st.SGD(groups(outside), lr=0.05, momentum=0.9), 20, clip=0.5)
        optimizer = st.SGD(groups(inside), lr=0.05, momentum=0.9, max_grad_norm=0.5)
        train(inside, optimizer, 20)
        self.assertLess(distance(inside, outside), 2 * PER_TEN_STEPS)
        self.assertGreater(optimizer.last_step.norm, 0)

    def test_the_norm_is_of_all_groups(self):
        net = model()
        net.loss(torch.arange(13)[None]).backward()
        expected = nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None])
        optimizer = st.SGD(groups(net), lr=0.0, max_grad_norm=1.0)
        optimizer.step()
        self.assertAlmostEqual(optimizer.last_step.norm, float(expected), delta=1e-5 * float(expected))

    def test_bf16_parameters_behave_like_rounded_fp32_masters(self):
        for name, arguments in CASES:
            with self.subTest(name=name, **arguments):
                torch.manual_seed(3)
                half = nn.Parameter(torch.randn(37, 19).bfloat16())
                master = nn.Parameter(half.detach().float())
                ours = getattr(st, name)([half], **arguments)
                theirs = make(torch.optim, name, _Holder(master), arguments)
                for _ in range(40):
                    gradient = torch.randn(37, 19).bfloat16()
                    half.grad, master.grad = gradient, gradient.float()
                    ours.step()
                    theirs.step()
                gap = (ours.master(half) - master.detach()).norm() / master.detach().norm()
                self.assertLess(float(gap), 4 * PER_TEN_STEPS)
                rounded = ours.master(half).bfloat16()  # to nearest even; the engine rounds ties up
                self.assertLessEqual(int((rounded != half).sum()), 2)

    def test_schedulers(self):
        kinds = {
            "StepLR": {"step_size": 2, "gamma": 0.5}, "MultiStepLR": {"milestones": [2, 5]}, "ConstantLR": {},
            "LinearLR": {}, "ExponentialLR": {"gamma": 0.9}, "CosineAnnealingLR": {"T_max": 7},
            "CosineAnnealingWarmRestarts": {"T_0": 3}, "PolynomialLR": {},
            "LambdaLR": {"lr_lambda": lambda n: 1 / (n + 1)},
            "MultiplicativeLR": {"lr_lambda": lambda n: 0.95}, "OneCycleLR": {"max_lr": 0.01, "total_steps": 30},
            "CyclicLR": {"base_lr": 1e-3, "max_lr": 1e-2, "step_size_up": 3},
        }
        for kind, arguments in kinds.items():
            for name, own in (("AdamW", {}), ("SGD", {"momentum": 0.9}), ("RMSprop", {"momentum": 0.5, "eps": 1e-3})):
                with self.subTest(kind=kind, name=name):
                    nets = []
                    for library in (torch.optim, st):
                        torch.manual_seed(0)
                        net = nn.Linear(6, 5)
                        optimizer = getattr(library, name)(net.parameters(), **own)
                        schedule = getattr(torch.optim.lr_scheduler, kind)(optimizer, **arguments)
                        for step in range(12):
                            net(torch.arange(6.0) / (step + 1)).square().sum().backward()
                            optimizer.step()
                            optimizer.zero_grad()
                            schedule.step()
                        nets.append((net, schedule.get_last_lr(), optimizer.param_groups[0].get("betas")))
                    self.assertEqual(nets[0][1:], nets[1][1:])
                    self.assertLess(distance(nets[1][0], nets[0][0]), 5e-6)

    def test_plateau_sequential_and_chained_schedulers(self):
        scheduler = torch.optim.lr_scheduler
        makers = [
            lambda o: scheduler.SequentialLR(o, [scheduler.LinearLR(o, total_iters=3),
                                                 scheduler.ExponentialLR(o, 0.9)], [3]),
            lambda o: scheduler.ChainedScheduler([scheduler.LinearLR(o), scheduler.ExponentialLR(o, 0.9)]),
            lambda o: scheduler.ReduceLROnPlateau(o, patience=1),
        ]
        for make_schedule in makers:
            rates = []
            for library in (torch.optim, st):
                net = nn.Linear(3, 2)
                optimizer = library.AdamW(net.parameters(), lr=1e-2)
                schedule = make_schedule(optimizer)
                for _ in range(8):
                    net(torch.ones(3)).sum().backward()
                    optimizer.step()
                    schedule.step(*([1.0] if isinstance(schedule, scheduler.ReduceLROnPlateau) else []))
                rates.append(optimizer.param_groups[0]["lr"])
            self.assertEqual(*rates)
            self.assertLess(rates[0], 1e-2)

    def test_averaged_models(self):
        nets = []
        for library in (torch.optim, st):
            net = model()
            optimizer = make(library, "AdamW", net, {"lr": 1e-3})
            swa = torch.optim.swa_utils
            average = swa.AveragedModel(net, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9))
            for step in range(5):
                train(net, optimizer, 1, first=step)
                average.update_parameters(net)
            nets.append(average)
        self.assertLess(distance(nets[1], nets[0]), PER_TEN_STEPS)


class _Holder:
    """The one parameter of a list, where make() wants a module."""

    def __init__(self, parameter):
        self._parameter = parameter

    def parameters(self):
        return [self._parameter]


if __name__ == "__main__":
    unittest.main()
