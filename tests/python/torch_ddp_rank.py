# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""One rank of torch_frameworks_test.py's DistributedDataParallel: RANK FOLDER."""
import sys

from torch_support import batch, groups, model, nn, st, torch


class WithLoss(nn.Module):
    """DistributedDataParallel averages the gradients of what its forward() made."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens):
        return self.net.loss(tokens)


def main():
    rank, folder = int(sys.argv[1]), sys.argv[2]
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    weights = {}
    for overlap in (None, "forward"):
        net = model()
        wrapped = nn.parallel.DistributedDataParallel(WithLoss(net))
        optimizer = st.AdamW(groups(net), lr=1e-3, overlap=overlap, nvme=folder)
        for step in range(4):
            wrapped(batch(2 * step + rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
        weights[str(overlap)] = net.state_dict()
    torch.save(weights, f"{folder}/rank{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
