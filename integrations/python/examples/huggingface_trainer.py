# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Hugging Face's Trainer with its optimizer's state on a drive: one line, checkpoints and resuming included.

    python huggingface_trainer.py --nvme /mnt/nvme --host-mem 2GiB --model HuggingFaceTB/SmolLM2-135M --text book.txt

Without --model it trains a small GPT-2 from random weights on its own source text, which takes seconds.
"""
import argparse
import pathlib
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import spillway.torch as st


class Windows(torch.utils.data.Dataset):
    """Runs of tokens, each shifted by half a window."""

    def __init__(self, tokens: torch.Tensor, length: int) -> None:
        self._runs = tokens.unfold(0, length, length // 2)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._runs[index], "labels": self._runs[index]}


def model_and_tokens(name: str | None, text: str) -> tuple[torch.nn.Module, torch.Tensor]:
    if name is None:
        config = GPT2Config(vocab_size=256, n_positions=128, n_embd=192, n_layer=4, n_head=4,
                            bos_token_id=0, eos_token_id=0)
        return GPT2LMHeadModel(config), torch.tensor(list(text.encode()))
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    return model, torch.tensor(AutoTokenizer.from_pretrained(name)(text)["input_ids"])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nvme", default=tempfile.gettempdir(), help="folder on a drive")
    options.add_argument("--host-mem", default="16MiB", help="memory for optimizer state and staging")
    options.add_argument("--model", help="name or folder of a Hugging Face model")
    options.add_argument("--text", type=pathlib.Path, default=pathlib.Path(__file__))
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--out", default=None, help="folder for checkpoints")
    options.add_argument("--resume", action="store_true", help="from the newest checkpoint in --out")
    given = options.parse_args()

    torch.manual_seed(0)
    model, tokens = model_and_tokens(given.model, given.text.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(given.out or scratch, max_steps=given.steps, per_device_train_batch_size=4,
                                      logging_steps=5, save_steps=10, report_to=[], use_cpu=True)
        optimizer = st.AdamW(model.parameters(), lr=1e-3, host_mem=given.host_mem, nvme=given.nvme)
        trainer = Trainer(model, arguments, train_dataset=Windows(tokens, 64), optimizers=(optimizer, None))
        trainer.train(resume_from_checkpoint=given.resume)
        used = optimizer.statistics()
        print(f"state: {used['state_bytes'] >> 20} MiB, of which {used['resident_state_bytes'] >> 20} MiB in memory")


if __name__ == "__main__":
    main()
