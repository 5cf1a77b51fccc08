#!/usr/bin/env python3
"""Puts what the parts of gpu_check.sh left behind into one JSON and says the outcome; exits 1 if one of them failed.

    scripts/gpu_check_report.py PARTS DEVICE SECONDS OUT WHY CODE     WHY it ended early, "" if it did not; with which CODE
    scripts/gpu_check_report.py --refusal INFO DEVICE                 prints why a device cannot be used, nothing if it can
"""
import json
import pathlib
import sys

LAST_CHARACTERS = 2000
MACHINE = "info"


def json_at(path: pathlib.Path) -> object:
    """What the file holds; null where there is none, or one that was cut."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def part(parts: pathlib.Path, name: str) -> dict:
    """How one part ended, with its own JSON where it wrote one and its last words where it failed."""
    code, seconds = map(int, (parts / f"{name}.end").read_text().split())
    found: dict = {"passed": code == 0, "seconds": seconds}
    own = json_at(parts / f"{name}.json")
    if own is not None and name != MACHINE:
        found["result"] = own
    if code != 0:
        found["exit_code"] = code
        found["said"] = (parts / f"{name}.log").read_text(errors="replace")[-LAST_CHARACTERS:]
    return found


def refusal_of(info: pathlib.Path, device: str) -> str:
    """Why `device` cannot be used, by what `spillway info` wrote."""
    found = json.loads(info.read_text())
    if found["cuda"]["refusal"]:
        return found["cuda"]["refusal"]
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isdecimal() or int(number) >= len(found["gpus"]):
        return f"there is no '{device}': the driver has {len(found['gpus'])} devices, from cuda:0"
    return found["gpus"][int(number)]["refusal"] or ""


def write_report(arguments: list[str]) -> int:
    """Writes the report and tells a person what matters of it."""
    parts, device, seconds, out = pathlib.Path(arguments[0]), arguments[1], int(arguments[2]), pathlib.Path(arguments[3])
    why, code = arguments[4], int(arguments[5])
    names = sorted(path.stem for path in parts.glob("*.end"))
    found = {name: part(parts, name) for name in names}
    failed = [name for name, one in found.items() if not one["passed"]]
    report = {"device": device, "seconds": seconds, "machine": json_at(parts / f"{MACHINE}.json"), "parts": found,
              "ended_early": why or None, "passed": not failed and not why}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    for name, one in found.items():
        print(f"{name:18} {'passed' if one['passed'] else 'FAILED'} in {one['seconds']} s")
    outcome = why or (f"{', '.join(failed)} failed" if failed else "all passed")
    print(f"gpu_check: {outcome}, after {seconds} s; {out}")
    return code or (0 if report["passed"] else 1)


def main(arguments: list[str]) -> int:
    """Does what the arguments say; see above."""
    if arguments[0] == "--refusal":
        print(refusal_of(pathlib.Path(arguments[1]), arguments[2]))
        return 0
    return write_report(arguments)


sys.exit(main(sys.argv[1:]))
