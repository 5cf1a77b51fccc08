# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""spillway.torch inside Hugging Face's Trainer, Accelerate, PEFT, Lightning and DistributedDataParallel."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

from torch_support import (batch, copy, distance, drive, groups, make, model, same_bits, st, torch,
                           unittest)

HERE = pathlib.Path(__file__).resolve().parent


def needs(*packages):
    """Skips with the name of what is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"not installed: {', '.join(missing)}")


def small_gpt2(seed=0):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    # Some 1.3 million parameters, so that their state does not fit beside the smallest staging; with dropout.
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=160, n_layer=4, n_head=4, bos_token_id=0,
                                      eos_token_id=0))


class Runs(torch.utils.data.Dataset):
    def __init__(self, count=48):
        self.tokens = torch.stack([batch(k, 1)[0] for k in range(count)])

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


@needs("transformers", "accelerate")
class HuggingFaceTrainer(unittest.TestCase):
    def train(self, net, folder, stop=None, resume=None, kind=st.AdamW, steps=10, by_class=False, **offload):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Stop(TrainerCallback):
            def on_step_end(self, arguments, state, control, **_):
                if state.global_step == stop:
                    control.should_save = control.should_training_stop = True

        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=2, gradient_accumulation_steps=2, save_strategy="no",
            learning_rate=1e-3, warmup_steps=3, lr_scheduler_type="cosine", max_grad_norm=0.5, report_to=[],
            use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=5)
        own = {"optimizer_cls_and_kwargs": (kind, {"lr": 1e-3, **offload})} if by_class else {
            "optimizers": (kind(net.parameters(), lr=1e-3, **offload), None)}
        trainer = Trainer(net, arguments, train_dataset=Runs(), callbacks=[Stop()], **own)
        trainer.train(resume_from_checkpoint=resume)
        optimizer = trainer.optimizer
        while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        if hasattr(optimizer, "wait"):
            optimizer.wait()
        return optimizer

    def test_stopped_and_resumed_equals_uninterrupted_with_state_on_the_drive(self):
        with drive() as nvme, tempfile.TemporaryDirectory() as out:
            offload = {"nvme": nvme, "host_mem": "6MiB"}
            whole = small_gpt2()
            used = self.train(whole, out + "/whole", **offload).statistics()
            self.assertGreater(used["nvme_read_bytes"], 0)
            self.assertLess(used["resident_state_bytes"], used["state_bytes"])
            self.train(small_gpt2(), out + "/parts", stop=7, **offload)
            for where in (offload, {}, {"overlap": "forward", **offload}):
                with self.subTest(**where):
                    resumed = small_gpt2(seed=9)
                    self.train(resumed, out + "/parts", resume=out + "/parts/checkpoint-7", **where)
                    self.assertEqual(same_bits(resumed, whole), [])

    def test_it_equals_torch(self):
        with tempfile.TemporaryDirectory() as out:
            theirs, ours, by_class = small_gpt2(), small_gpt2(), small_gpt2()
            self.train(theirs, out, kind=torch.optim.AdamW)
            self.train(ours, out)
            self.assertLess(distance(ours, theirs), 1e-5)
            optimizer = self.train(by_class, out, by_class=True)
            self.assertIsInstance(optimizer, st.AdamW)
            self.assertEqual(len(optimizer.param_groups), 2)  # the Trainer's own: with decay and without

    def test_overlap_forward_saves_whole_weights(self):
        from safetensors.torch import load_file

        with drive() as nvme, tempfile.TemporaryDirectory() as out:
            for overlap in (None, "forward"):
                self.train(small_gpt2(), f"{out}/{overlap}", stop=4, overlap=overlap, nvme=nvme, host_mem="6MiB")
            first, second = (load_file(f"{out}/{overlap}/checkpoint-4/model.safetensors")
                             for overlap in (None, "forward"))
            self.assertTrue(all(torch.equal(first[name], second[name]) for name in first))


@needs("accelerate")
class Accelerate(unittest.TestCase):
    def test_prepare_accumulate_clip_save_and_load(self):
        from accelerate import Accelerator

        nets = []
        for library in (torch.optim, st):
            net = model()
            optimizer = make(library, "AdamW", net, {"lr": 1e-3})
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
            prepared, wrapped, schedule = accelerator.prepare(net, optimizer, schedule)
            with tempfile.TemporaryDirectory() as folder:
                for step in range(8):
                    with accelerator.accumulate(prepared):
                        accelerator.backward(net.loss(batch(step)))
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                        wrapped.step()
                        schedule.step()
                        wrapped.zero_grad()
                    if step == 3:
                        accelerator.save_state(folder)
                kept = copy.deepcopy(net)
                accelerator.load_state(folder)
                for step in range(4, 8):
                    with accelerator.accumulate(prepared):
                        accelerator.backward(net.loss(batch(step)))
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                        wrapped.step()
                        schedule.step()
                        wrapped.zero_grad()
                self.assertEqual(same_bits(net, kept), [])
            nets.append(net)
        self.assertLess(distance(nets[1], nets[0]), 2e-6)


@needs("transformers", "peft")
class Peft(unittest.TestCase):
    def test_lora(self):
        from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

        def start(seed, library=st):
            net = get_peft_model(small_gpt2(), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn"],
                                                          fan_in_fan_out=True))
            torch.manual_seed(seed)
            net.eval()  # no dropout: the comparison is of optimizers
            return net, library.AdamW(net.parameters(), lr=1e-2)

        def run(net, optimizer, steps, first=0):
            for step in range(first, first + steps):
                net(input_ids=batch(step), labels=batch(step)).loss.backward()
                optimizer.step()
                optimizer.zero_grad()

        theirs, their_optimizer = start(0, torch.optim)
        ours, our_optimizer = start(0)
        ours.load_state_dict(theirs.state_dict())
        run(theirs, their_optimizer, 4)
        run(ours, our_optimizer, 4)
        self.assertLess(distance(ours, theirs), 1e-6)
        frozen = sum(p.numel() for p in ours.parameters() if not p.requires_grad)
        self.assertGreater(frozen, 1_000_000)
        self.assertLess(our_optimizer.statistics()["state_bytes"], 1 << 20)
        adapters = copy.deepcopy(get_peft_model_state_dict(ours))
        saved = copy.deepcopy(our_optimizer.state_dict())
        run(ours, our_optimizer, 2, first=4)
        resumed, optimizer = start(7)
        set_peft_model_state_dict(resumed, adapters)
        optimizer.load_state_dict(saved)
        run(resumed, optimizer, 2, first=4)
        trained = {name: p for name, p in ours.named_parameters() if p.requires_grad}
        for name, p in resumed.named_parameters():
            if p.requires_grad:
                self.assertTrue(torch.equal(p, trained[name]), name)


@needs("lightning")
class Lightning(unittest.TestCase):
    def test_fit_save_and_resume(self):
        import lightning

        class Module(lightning.LightningModule):
            def __init__(self, library, seed=0):
                super().__init__()
                self.net, self.library = model(seed), library

            def training_step(self, tokens, _):
                return self.net.loss(tokens)

            def configure_optimizers(self):
                optimizer = make(self.library, "AdamW", self.net, {"lr": 1e-3})
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def fit(module, epochs, resume=None):
            trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, logger=False,
                                        enable_checkpointing=False, enable_progress_bar=False,
                                        enable_model_summary=False, accumulate_grad_batches=2, gradient_clip_val=0.5)
            data = torch.utils.data.DataLoader(torch.cat([batch(k) for k in range(16)]), batch_size=3)
            trainer.fit(module, data, ckpt_path=resume)
            return trainer

        theirs, ours, resumed = Module(torch.optim), Module(st), Module(st, seed=4)
        fit(theirs, 2)
        fit(ours, 2)
        self.assertLess(distance(ours, theirs), 2e-6)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "checkpoint")
            fit(Module(st), 1).save_checkpoint(path)
            fit(resumed, 2, resume=path)
        self.assertEqual(same_bits(resumed, ours), [])


class DistributedDataParallel(unittest.TestCase):
    def test_two_ranks_keep_the_same_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, str(HERE / "torch_ddp_rank.py"), str(rank), folder])
                     for rank in range(2)]
            self.assertEqual([process.wait(timeout=300) for process in ranks], [0, 0])
            weights = [torch.load(f"{folder}/rank{rank}.pt", weights_only=True) for rank in range(2)]
            single = model()
            optimizer = st.AdamW(groups(single), lr=1e-3)
            for step in range(4):
                for rank in range(2):
                    (single.loss(batch(2 * step + rank)) / 2).backward()
                optimizer.step()
                optimizer.zero_grad()
        for name, value in single.state_dict().items():
            for overlap in ("None", "forward"):
                self.assertTrue(torch.equal(weights[0][overlap][name], weights[1][overlap][name]), name)
                self.assertTrue(torch.equal(weights[0]["None"][name], weights[0][overlap][name]), name)
            torch.testing.assert_close(weights[0]["None"][name], value, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
