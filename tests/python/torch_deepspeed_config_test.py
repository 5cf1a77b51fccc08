# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""from_deepspeed_config(): what is taken over, and what is refused by its key."""
import torch_support  # noqa: F401  first, since it skips the test where torch is missing
import json
import os

from spillway.deepspeed_config import from_deepspeed_config
from torch_support import ROWS, batch, budgets, copy, distance, drive, groups, model, st, torch, train, unittest


def config(folder, **changes):
    whole = {
        "train_batch_size": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.02}},
        "gradient_clipping": 0.5,
        "zero_optimization": {"stage": 3, "sub_group_size": 100000000, "offload_optimizer": {
            "device": "nvme", "nvme_path": folder, "pipeline_read": True, "buffer_count": 12, "pin_memory": True}},
        "aio": {"block_size": 1048576, "queue_depth": 32, "overlap_events": True},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = whole
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return whole


class DeepSpeedConfiguration(unittest.TestCase):
    def test_what_is_taken_over(self):
        with drive() as folder:
            path = os.path.join(folder, "ds_config.json")
            with open(path, "w") as file:
                json.dump(config(folder), file)
            net = model(rows=ROWS)
            least, _ = budgets("AdamW", {}, folder)
            optimizer = from_deepspeed_config(path, groups(net), host_mem=least)
            self.assertIs(type(optimizer), st.AdamW)
            self.assertEqual({key: optimizer.defaults[key] for key in ("lr", "betas", "eps", "weight_decay")},
                             {"lr": 3e-4, "betas": (0.8, 0.99), "eps": 1e-7, "weight_decay": 0.02})
            twin = copy.deepcopy(net)
            theirs = torch.optim.AdamW(groups(twin), lr=3e-4, betas=(0.8, 0.99), eps=1e-7, weight_decay=0.02)
            train(net, optimizer, 2)
            train(twin, theirs, 2, clip=0.5)
            self.assertLess(distance(net, twin), 1e-5)
            self.assertGreater(optimizer.statistics()["nvme_read_bytes"], 0)

    def test_names(self):
        with drive() as folder:
            for kind, changes, expected in (
                    ("Adam", {}, st.AdamW), ("Adam", {"adam_w_mode": False}, st.Adam), ("AdamW", {}, st.AdamW),
                    ("Lion", {}, st.Lion), ("Adagrad", {}, st.Adagrad), ("SGD", {"momentum": 0.9}, st.SGD),
                    ("RMSprop", {"alpha": 0.9}, st.RMSprop)):
                with self.subTest(kind=kind, **changes):
                    given = config(folder, optimizer={"type": kind, "params": {"lr": 0.01, **changes}})
                    optimizer = from_deepspeed_config(given, model().parameters())
                    self.assertIs(type(optimizer), expected)
                    self.assertEqual(optimizer.defaults["weight_decay"], 0)

    def test_clipping_is_on_unless_it_is_off(self):
        with drive() as folder:
            for value, clips in ((None, True), (0, False), (0.3, True)):
                given = config(folder)
                del given["gradient_clipping"]
                if value is not None:
                    given["gradient_clipping"] = value
                net = model()
                optimizer = from_deepspeed_config(given, net.parameters())
                net.loss(batch(0)).backward()
                optimizer.step()
                self.assertEqual(optimizer.last_step.norm is not None, clips)

    def test_bf16_skips_what_is_not_finite(self):
        with drive() as folder:
            net = model(dtype=torch.bfloat16)
            optimizer = from_deepspeed_config(config(folder, bf16={"enabled": True}), net.parameters())
            net.loss(batch(0)).backward()
            net.gain.grad.fill_(float("nan"))
            with self.assertWarnsRegex(RuntimeWarning, "skipped"):
                optimizer.step()
            self.assertFalse(optimizer.last_step.applied)

    def test_refused_by_key(self):
        cases = {
            "optimizer__type": ("OneBitAdam", "optimizer.type is 'OneBitAdam'"),
            "optimizer__params__lr": ("auto", r'lr is "auto".*lr=VALUE'),
            "optimizer__params__bias_correction": (False, "optimizer.params.bias_correction"),
            "optimizer__params__weight_decya": (0.1, "did you mean optimizer.params.weight_decay"),
            "optimizer__params__max_coeff": (0.1, "optimizer.params.max_coeff"),
            "zero_optimization__offload_param": ({"device": "nvme"}, "zero_optimization.offload_param.device"),
            "zero_optimization__offload_optimizer": (7, "zero_optimization.offload_optimizer is 7"),
            "zero_optimization__offload_optimizer__ratio": (0.5, "offload_optimizer.ratio is 0.5"),
            "zero_optimization__offload_optimizer__super_offload": (True, "super_offload"),
            "zero_optimization__offload_optimizer__nvme_path": ("", "offload_optimizer.nvme_path is missing"),
            "zero_optimization__offload_optimizer__device": ("tape", "offload_optimizer.device is 'tape'"),
            "zero_optimization__zenflow": ({}, "zero_optimization.zenflow"),
            "zero_optimization__zero_quantized_weights": (True, "zero_optimization.zero_quantized_weights"),
            "fp16": ({"enabled": True}, "fp16.enabled"),
            "bf16": ({"enabled": True, "bf16_optimizer_states": True}, "bf16.bf16_optimizer_states"),
            "bf16__enabled": ("auto", "bf16.enabled is 'auto'.*true or false"),
            "fp16__enabled": ("auto", "fp16.enabled is 'auto'.*true or false"),
            "bf16": (None, "bf16 is None .*a section"),
            "zero_optimization": (True, "zero_optimization is True .*a section"),
            "gradient_clipping": (True, "gradient_clipping is True .*a number"),
            "optimizer__params": (None, "optimizer.params is None .*a section"),
            "optimizer__params__eps": ("1e-8", "optimizer.params.eps is '1e-8' .*a number"),
            "optimizer__params__betas": ([0.9], r"optimizer.params.betas is \[0.9\] .*two numbers"),
            "aio__use_gds": (True, "aio.use_gds"),
            "aio__num_threads": (4, "aio.num_threads"),
            "scheduler": ({"type": "WarmupLR"}, "scheduler"),
            "gradient_cliping": (1.0, "did you mean gradient_clipping"),
        }
        with drive() as folder:
            for path, (value, text) in cases.items():
                with self.subTest(path=path), self.assertRaisesRegex(ValueError, text):
                    from_deepspeed_config(config(folder, **{path: value}), model().parameters())
            with self.assertRaisesRegex(ValueError, "optimizer is None"):
                from_deepspeed_config({"gradient_clipping": 1.0}, model().parameters())


if __name__ == "__main__":
    unittest.main()
