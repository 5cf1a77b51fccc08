# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""A training loop of one's own: AdamW's state in a budget of memory and on a drive, saved and taken up again.

    python plain_loop.py --nvme /mnt/nvme --host-mem 64MiB --steps 200
"""
import argparse
import pathlib
import tempfile

import torch
from torch import nn

import spillway.torch as st

CONTEXT, WIDTH = 64, 256


class Model(nn.Module):
    """A small recurrent language model of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(256, WIDTH), nn.GRU(WIDTH, 2 * WIDTH, batch_first=True)
        self.output = nn.Linear(2 * WIDTH, 256)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.recurrent(self.embedding(tokens[:, :-1]))
        return nn.functional.cross_entropy(self.output(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def batch(text: torch.Tensor, step: int) -> torch.Tensor:
    starts = torch.randint(len(text) - CONTEXT - 1, (8,), generator=torch.Generator().manual_seed(step))
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nvme", default=tempfile.gettempdir(), help="folder on a drive")
    options.add_argument("--host-mem", default="8MiB", help="memory for optimizer state and staging")
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--checkpoint", type=pathlib.Path, help="file to save to, and to go on from if it is there")
    given = options.parse_args()

    torch.manual_seed(0)
    text = torch.tensor(list(pathlib.Path(__file__).read_bytes()))
    model = Model()
    optimizer = st.AdamW(model.parameters(), lr=2e-3, host_mem=given.host_mem, nvme=given.nvme, max_grad_norm=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    first = 0
    if given.checkpoint and given.checkpoint.exists():
        saved = torch.load(given.checkpoint, mmap=True, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        first = saved["step"]
    for step in range(first, given.steps):
        loss = model.loss(batch(text, step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0 or step + 1 == given.steps:
            print(f"step {step}: loss {loss.item():.3f}, gradient norm {optimizer.last_step.norm:.2f}")
    if given.checkpoint:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(), "step": given.steps}, given.checkpoint)
    used = optimizer.statistics()
    if used:
        print(f"state: {used['state_bytes'] >> 20} MiB, of which {used['resident_state_bytes'] >> 20} MiB in memory; "
              f"read {used['nvme_read_bytes'] >> 20} MiB and wrote {used['nvme_written_bytes'] >> 20} MiB on the drive")


if __name__ == "__main__":
    main()
