#!/usr/bin/env python3
"""Fails unless every #include goes down the layers, and every header compiles alone.

The layers, highest first: integrations, engine, offload, and the leaves nvme, cpu_optim and cuda. A layer
may include itself and any lower one; leaves do not see each other, except that cuda may use the
arithmetic headers of cpu_optim. tests, bench and scripts may use everything, and nothing uses them.
A folder's detail/ is private to its layer (and its tests).

    scripts/check_layers.py             the arrows
    scripts/check_layers.py --headers   also compiles each header on its own
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAY_INCLUDE = {
    "integrations": {"engine", "offload", "nvme", "cpu_optim", "cuda"},
    "engine": {"offload", "nvme", "cpu_optim", "cuda"},
    "offload": {"nvme", "cpu_optim", "cuda"},
    "nvme": set(),
    "cpu_optim": set(),
    "cuda": {"cpu_optim"},
}
FREE = {"tests", "bench"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


def sources():
    for layer in [*MAY_INCLUDE, *FREE]:
        for path in sorted((ROOT / layer).rglob("*")):
            if path.suffix in SUFFIXES:
                yield layer, path


def arrow_faults():
    for layer, path in sources():
        for included in INCLUDE.findall(path.read_text()):
            name = path.relative_to(ROOT)
            target = included.split("/")[0]
            if target == "hwy":  # Highway asks for quotes
                continue
            if not (ROOT / included).is_file():
                yield f'{name}: "{included}" is not a path from the repository root'
                continue
            if "/detail/" in included and path.suffix == ".h" and "detail" not in name.parts and layer not in FREE:
                yield f"{name}: a public header may not need {included}, which is not installed"
            if target == layer or (layer in FREE and target in {*MAY_INCLUDE, *FREE}):
                continue
            if target not in MAY_INCLUDE.get(layer, set()):
                yield f"{name}: {layer}/ may not include {target}/ ({included})"
            elif "/detail/" in included:
                yield f"{name}: {included} is private to {target}/"


def compiles_alone(path):
    flags = ["-std=c++20", f"-I{ROOT}", "-fsyntax-only", "-x", "c++", "-Wall", "-Wextra", "-Wno-pragma-once-outside-header"]
    done = subprocess.run(["g++", *flags, str(path)], capture_output=True, text=True)
    return None if done.returncode == 0 else f"{path.relative_to(ROOT)} does not compile alone:\n{done.stderr[:800]}"


def header_faults():
    # "-inl.h" headers are included once per instruction set, inside a translation unit that prepares it.
    headers = [path for layer, path in sources() if path.suffix == ".h" and not path.name.endswith("-inl.h")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [fault for fault in pool.map(compiles_alone, headers) if fault]


faults = list(arrow_faults())
if "--headers" in sys.argv[1:]:
    faults += header_faults()
for fault in faults:
    print(fault)
count = sum(1 for _ in sources())
print(f"layers: {count} files, {len(faults)} faults")
sys.exit(1 if faults or count == 0 else 0)
