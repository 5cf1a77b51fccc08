#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""libspillway_c.so shows exactly what its header declares, under the header's version.

    exports_test.py LIBRARY
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def output_of(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def shown(library):
    """Name -> version of every defined dynamic symbol; the version's own entry is left out."""
    lines = output_of("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines()
    symbols = [line.split() for line in lines if line]
    return dict(fields[-1].split("@@") for fields in symbols if fields[-2] != "A")


def main(library):
    header = (ROOT / "integrations" / "c" / "spillway.h").read_text()
    code = re.sub(r"//[^\n]*", "", header)
    declared = set(re.findall(r"\b(spillway_\w+)\(", code))
    assert len(declared) > 30, declared
    version = int(re.search(r"#define SPILLWAY_ABI_VERSION (\d+)",
                            (ROOT / "integrations" / "c" / "spillway_types.h").read_text())[1])

    symbols = shown(library)
    assert set(symbols) == declared, f"only in one of library and header: {sorted(set(symbols) ^ declared)}"
    assert set(symbols.values()) == {f"SPILLWAY_{version}"}, set(symbols.values())
    soname = re.search(r"SONAME.*\[(.*)\]", output_of("readelf", "-d", library))[1]
    assert soname == f"libspillway_c.so.{version}", soname
    print(f"{len(symbols)} functions, {soname}")


main(pathlib.Path(sys.argv[1]))
