#!/usr/bin/env python3
"""Puts what the parts of gpu_check.sh left behind into one JSON; exits 1 if one of them failed.

    scripts/gpu_check_report.py PARTS DEVICE SECONDS OUT
"""
import json
import pathlib
import sys

LAST_CHARACTERS = 2000


def part(parts: pathlib.Path, name: str) -> dict:
    """How one part ended, with its own JSON where it wrote one and its last words where it failed."""
    code, seconds = map(int, (parts / f"{name}.end").read_text().split())
    found: dict = {"passed": code == 0, "seconds": seconds}
    own = parts / f"{name}.json"
    if own.exists():
        found["result"] = json.loads(own.read_text())
    if code != 0:
        found["exit_code"] = code
        found["said"] = (parts / f"{name}.log").read_text(errors="replace")[-LAST_CHARACTERS:]
    return found


def main(arguments: list[str]) -> int:
    """Writes the report and tells a person what matters of it."""
    device, seconds = arguments[1], int(arguments[2])
    parts, out = pathlib.Path(arguments[0]), pathlib.Path(arguments[3])
    machine = json.loads((parts / "info.json").read_text())
    names = sorted(path.stem for path in parts.glob("*.end"))
    report = {"device": device, "seconds": seconds, "machine": machine}
    report["parts"] = {name: part(parts, name) for name in names}
    report["passed"] = all(one["passed"] for one in report["parts"].values())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    for name, one in report["parts"].items():
        print(f"{name:18} {'passed' if one['passed'] else 'FAILED'} in {one['seconds']} s")
    print(f"gpu_check: {'all passed' if report['passed'] else 'something failed'} in {seconds} s; {out}")
    return 0 if report["passed"] else 1


sys.exit(main(sys.argv[1:]))
