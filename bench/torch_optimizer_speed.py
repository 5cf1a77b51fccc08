#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""Speed of spillway.torch.AdamW as ratios from interleaved pairs, in JSON lines.

    bench/torch_optimizer_speed.py memory                     state in memory: its step against torch's fused AdamW
    bench/torch_optimizer_speed.py deepspeed --peers DIR --peers-python PYTHON
                                                              state on a drive: whole training steps and peak memory
                                                              against DeepSpeed ZeRO-3 on the same model and drive

Run it with a python that has torch and spillway. `memory` gives bytes per second by the 28 bytes that an fp32 AdamW
cannot avoid (reads p, m, v, g; writes p, m, v) beside the rate of an in-place update measured in the same run.
`deepspeed` needs a folder with the peers' model.py and zero_infinity.py, and a python that has DeepSpeed; both
sides train its GPT-2-shaped model in bf16 with an exact fp32 master, clipping at 1.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("against", choices=["memory", "deepspeed", "train"], help="train: what `deepspeed` starts itself")
parser.add_argument("--elements", type=int, default=64 << 20, help="memory: parameters in all")
parser.add_argument("--pairs", type=int, default=5)
parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
parser.add_argument("--dir", default=os.getcwd(), help="folder on the drive to measure")
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--hidden", type=int, default=768)
parser.add_argument("--vocab", type=int, default=50257)
parser.add_argument("--steps", type=int, default=6, help="deepspeed: steps a run; the first two do not count")
parser.add_argument("--host-mem", default="200MiB", help="deepspeed: of our state and staging")
parser.add_argument("--overlap", default="forward", choices=["none", "forward"])
parser.add_argument("--peers", type=pathlib.Path)
parser.add_argument("--peers-python", default=sys.executable)
options = parser.parse_args()


def in_place_update_rate():
    """Bytes per second of x += 1 over an array larger than any cache, with the same threads."""
    import torch
    values = torch.zeros(64 << 20)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        values.add_(1.0)
        seconds.append(time.perf_counter() - began)
    return 8 * values.numel() / min(seconds)


def memory():
    import torch
    import spillway.torch as st
    torch.set_num_threads(options.threads)
    rows = [torch.randn(n, 1024) for n in [options.elements >> 13] * 8]
    gradients = [torch.randn_like(row) for row in rows]

    def parameters():
        made = [torch.nn.Parameter(row.clone()) for row in rows]
        for parameter, gradient in zip(made, gradients):
            parameter.grad = gradient
        return made
    theirs = torch.optim.AdamW(parameters(), lr=1e-3, fused=True)
    ours = st.AdamW(parameters(), lr=1e-3, threads=options.threads)
    elements = sum(row.numel() for row in rows)

    def seconds(optimizer):
        began = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - began
    seconds(theirs), seconds(ours)
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(options.pairs)]
    rate = 28 * elements / statistics.median(ours_s for ours_s, _ in pairs)
    update_rate = in_place_update_rate()
    ratios = sorted(ours_s / theirs_s for ours_s, theirs_s in pairs)
    print(json.dumps({"against": "torch fused AdamW, state in memory", "elements": elements, "threads": options.threads,
                      "step_s": round(statistics.median(p[0] for p in pairs), 5),
                      "torch_step_s": round(statistics.median(p[1] for p in pairs), 5),
                      "median_time_ratio": round(statistics.median(ratios), 4), "ratios": [round(r, 4) for r in ratios],
                      "bytes_per_s_28": round(rate), "in_place_update_bytes_per_s": round(update_rate),
                      "attained": round(rate / update_rate, 4), "load1": os.getloadavg()[0]}))


def model_flags():
    return ["--layers", str(options.layers), "--hidden", str(options.hidden), "--heads", str(options.hidden // 64),
            "--vocab", str(options.vocab), "--steps", str(options.steps), "--threads", str(options.threads)]


def train():
    """One run of ours; the last line says what it took."""
    sys.path.insert(0, str(options.peers))
    import model as peer
    import torch
    import spillway.torch as st
    flags = argparse.ArgumentParser()
    peer.add_model_flags(flags)
    args = flags.parse_args(model_flags())
    network = peer.build(args).bfloat16()
    optimizer = st.AdamW(network.parameters(), lr=args.lr, weight_decay=0.01, host_mem=options.host_mem,
                         nvme=options.dir, max_grad_norm=args.clip, threads=options.threads,
                         overlap=None if options.overlap == "none" else options.overlap)
    data, steps, losses = peer.batches(args), [], []
    for _ in range(args.steps):
        tokens, targets = next(data)
        began = time.perf_counter()
        loss = network(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append(time.perf_counter() - began)
        losses.append(float(loss.detach()))
    optimizer.wait()
    statistics_ = optimizer.statistics()
    print(json.dumps({"total_s": statistics.median(steps[2:]), "final_loss": losses[-1],
                      "peak_rss_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                      "parameters": sum(p.numel() for p in network.parameters()),
                      "nvme_bytes_per_parameter_and_step": (statistics_["nvme_read_bytes"]
                                                            + statistics_["nvme_written_bytes"])
                      / args.steps / sum(p.numel() for p in network.parameters())}))


def last_json_line(command, **environment):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(str(word) for word in command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def deepspeed():
    if options.peers is None:
        sys.exit("--peers: give the folder that holds zero_infinity.py and model.py")
    times, memories = [], []
    for pair in range(options.pairs):
        with tempfile.TemporaryDirectory(dir=options.dir, prefix="spillway-bench-") as folder:
            ours = last_json_line([sys.executable, __file__, "train", "--peers", options.peers, "--dir", folder,
                                   "--host-mem", options.host_mem, "--overlap", options.overlap, *model_flags()[:4],
                                   *model_flags()[6:]])
            theirs = last_json_line([options.peers_python, options.peers / "zero_infinity.py", "--offload", "nvme",
                                     "--dir", folder, *model_flags()], DS_ACCELERATOR="cpu",
                                    PATH=f"{pathlib.Path(options.peers_python).parent}:{os.environ['PATH']}")
        times.append(ours["total_s"] / theirs["total_s"])
        memories.append(ours["peak_rss_gib"] / theirs["peak_rss_gib"])
        print(json.dumps({"pair": pair, "step_s": round(ours["total_s"], 3), "deepspeed_step_s": round(theirs["total_s"], 3),
                          "time_ratio": round(times[-1], 4), "peak_rss_gib": round(ours["peak_rss_gib"], 2),
                          "deepspeed_peak_rss_gib": round(theirs["peak_rss_gib"], 2),
                          "memory_ratio": round(memories[-1], 4), "loss": ours["final_loss"],
                          "deepspeed_loss": theirs["final_loss"],
                          "nvme_bytes_per_parameter": round(ours["nvme_bytes_per_parameter_and_step"], 2),
                          "deepspeed_nvme_bytes_per_parameter": round(theirs["read_B_per_param"]
                                                                      + theirs["write_B_per_param"], 2)}), flush=True)
    print(json.dumps({"against": "DeepSpeed ZeRO-3, state on the drive", "median_time_ratio": round(statistics.median(times), 4),
                      "median_memory_ratio": round(statistics.median(memories), 4), "pairs": options.pairs,
                      "load1": os.getloadavg()[0]}))


{"memory": memory, "deepspeed": deepspeed, "train": train}[options.against]()
