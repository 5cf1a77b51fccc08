#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The update's kernels beside other programs' and beside memory's own rate, as medians of ratios from one run.

    bench/optimizer_kernels.py                                formats of state against each other, memory's rates
    bench/optimizer_kernels.py --peers-python P               also against torch, DeepSpeed, torchao and bitsandbytes

`spillway bench adam` and a peer's step take turns, round by round, on as many parameters and threads, all in memory;
each turn is the median of some updates. A peer that P does not have is skipped, with the reason. Prints one JSON
object: a figure of 1.3 is 1.3 times as fast, `asked` is what the project asks of itself.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
HYPER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
Step = Callable[[], Any]


def flat_parameter(elements: int) -> Any:
    """One fp32 parameter with its gradient."""
    import torch
    parameter = torch.nn.Parameter(torch.randn(elements).mul_(0.02))
    parameter.grad = torch.randn(elements).mul_(1e-3)
    return parameter


def torch_fused(elements: int) -> Step:
    """torch's own, all fp32."""
    import torch
    return torch.optim.AdamW([flat_parameter(elements)], fused=True, **HYPER).step


def deepspeed(elements: int) -> Step:
    """DeepSpeed's, all fp32."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam([flat_parameter(elements)], adamw_mode=True, **HYPER).step


def deepspeed_mixed(elements: int) -> Step:
    """What ZeRO does with a gradient in bf16: widen, unscale, step, and write the weight in bf16."""
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    parameter = flat_parameter(elements)
    gradient = parameter.grad.to(torch.bfloat16)
    weight = torch.empty(elements, dtype=torch.bfloat16)
    optimizer = DeepSpeedCPUAdam([parameter], adamw_mode=True, **HYPER)

    def step() -> None:
        parameter.grad.copy_(gradient)
        parameter.grad.mul_(0.5)
        optimizer.step()
        weight.copy_(parameter.data)
    return step


def torchao_8bit(elements: int) -> Step:
    """State in 8 bits; compiles in its first step."""
    from torchao.optim import AdamW8bit
    return AdamW8bit([flat_parameter(elements)], **HYPER).step


def bitsandbytes_8bit(elements: int) -> Step:
    """State in 8 bits."""
    from bitsandbytes.optim import AdamW8bit
    return AdamW8bit([flat_parameter(elements)], **HYPER).step


PEERS: dict[str, Callable[[int], Step]] = {each.__name__: each for each in (
    torch_fused, deepspeed, deepspeed_mixed, torchao_8bit, bitsandbytes_8bit)}
# Name of the figure, the peer, the arguments of our side, what is asked.
COMPARISONS = (("fp32_to_torch_fused", "torch_fused", [], 1.0),
               ("fp32_to_deepspeed", "deepspeed", [], 1.0),
               ("bf16_gradient_split_master_to_deepspeed_cast_unscale_step", "deepspeed_mixed",
                ["--grad", "bf16", "--weights", "split"], 1.6),
               ("int8_state_to_torchao_8bit", "torchao_8bit", ["--state", "int8"], 30),
               ("int8_state_to_bitsandbytes_8bit", "bitsandbytes_8bit", ["--state", "int8"], 30))


def serve(name: str, elements: int, threads: int) -> None:
    """The peer's process: a line {"ready": true}, or one with an error, then for each number that it reads the
    seconds of so many steps."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    try:
        import torch
        torch.set_num_threads(threads)
        step = PEERS[name](elements)
        step()
    except Exception as error:  # whatever keeps a peer from running here is the reason that it is skipped
        print(json.dumps({"error": f"{type(error).__name__}: {str(error).strip()[-200:]}"}), file=answers, flush=True)
        return
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            began = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


class Peer:
    """A peer's step in a process of its own, which keeps parameters and state."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.elements = options.elements
        self.process = subprocess.Popen(
            [options.peers_python, __file__, "--serve", name, "--elements", str(options.elements), "--threads",
             str(options.threads)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.error = self.answer().get("error", "")

    def answer(self) -> dict[str, Any]:
        """The next line of the process."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"its process ended with {self.process.wait()}"}

    def parameters_per_s(self, steps: int) -> float:
        """By the median of so many steps."""
        assert self.process.stdin
        print(steps, file=self.process.stdin, flush=True)
        return self.elements / statistics.median(self.answer()["seconds"])

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def ours(options: argparse.Namespace, more: list[str]) -> dict[str, Any]:
    """One run of `spillway bench adam`."""
    done = subprocess.run([options.program, "bench", "adam", "--elements", str(options.elements), "--threads",
                           str(options.threads), "--pairs", str(options.updates), "--json", "-", *more],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{options.program} bench adam: {(done.stderr or done.stdout).strip()[-400:]}")
    return json.loads(done.stdout[done.stdout.index("{"):])


def figure(name: str, values: list[float], asked: float, **more: Any) -> dict[str, Any]:
    """One line of the result: the median of each round's own ratio."""
    median = statistics.median(values)
    print(f"{name}: {median:.3f}, {asked} asked", file=sys.stderr)
    return {"name": name, "ratio": median, "asked": asked, "least": min(values), "most": max(values), **more}


def against_memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The formats of state in turn, and each run's own yardsticks."""
    rounds = [{state: ours(options, ["--state", state]) for state in ("fp32", "int8", "bf16")}
              for _ in range(options.rounds)]
    rates = {state: statistics.median(each[state]["parameters_per_s"] for each in rounds) for state in rounds[0]}

    def to_fp32(state: str) -> list[float]:
        return [each[state]["parameters_per_s"] / each["fp32"]["parameters_per_s"] for each in rounds]
    return [figure("int8_state_to_fp32_state", to_fp32("int8"), 1.3, parameters_per_s=rates),
            figure("bf16_state_to_fp32_state", to_fp32("bf16"), 1.0, parameters_per_s=rates),
            figure("fp32_update_to_in_place_pass", [each["fp32"]["attained"] for each in rounds], 0.95,
                   bytes_per_s=statistics.median(each["fp32"]["bytes_per_s"] for each in rounds)),
            figure("gradient_scan_to_read_pass", [each["fp32"]["scan_attained"] for each in rounds], 0.9,
                   bytes_per_s=statistics.median(each["fp32"]["scan_bytes_per_s"] for each in rounds))]


def against_peer(options: argparse.Namespace, name: str, peer_name: str, arguments: list[str],
                 asked: float) -> dict[str, Any]:
    """Ours and the peer's step in turn."""
    peer = Peer(peer_name, options)
    if peer.error:
        print(f"{name}: skipped, {peer.error}", file=sys.stderr)
        return {"name": name, "asked": asked, "skipped": peer.error}
    is_slow = asked > 10  # a step takes seconds
    rounds = [(ours(options, arguments)["parameters_per_s"], peer.parameters_per_s(1 if is_slow else options.updates))
              for _ in range(min(3, options.rounds) if is_slow else options.rounds)]
    peer.close()
    return figure(name, [mine / theirs for mine, theirs in rounds], asked,
                  parameters_per_s=statistics.median(mine for mine, _ in rounds),
                  peer_parameters_per_s=statistics.median(theirs for _, theirs in rounds))


def main() -> None:
    """Parses, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=64 << 20, help="parameters")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=5, help="of each side in a round")
    parser.add_argument("--only", default="", help="figures against peers whose name contains this")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "release" / "spillway")
    parser.add_argument("--peers-python", type=pathlib.Path, help="a Python with torch and the other peers")
    parser.add_argument("--serve", choices=list(PEERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.elements, options.threads)
        return
    if options.rounds < 1 or options.updates < 1:
        parser.error("--rounds and --updates must be 1 or more")
    if not options.program.is_file():
        parser.error(f"{options.program} is not built: cmake --build build/release --target spillway")
    load_before = os.getloadavg()[0]
    results = [] if options.only else against_memory(options)
    if options.peers_python:
        results += [against_peer(options, *each) for each in COMPARISONS if options.only in each[0]]
    print(json.dumps({"elements": options.elements, "threads": options.threads, "rounds": options.rounds,
                      "updates": options.updates, "load1_before": load_before, "figures": results}, indent=1))


if __name__ == "__main__":
    main()
