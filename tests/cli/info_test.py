# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The program takes BLAS kernels that fit the processor, unless it is told which."""
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from support import run  # noqa: E402

VARIABLE = "OPENBLAS_CORETYPE"
NARROW = {"prescott", "core2", "penryn", "dunnington", "nehalem", "sandybridge"}


def info(**variables):
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | variables
    return json.loads(run(["info", "--json", "-"], env=environment)[1])


def main():
    chosen = info()
    print(f"isa {chosen['isa']}, kernels {chosen['blas_kernels']}")
    if chosen["isa"] != "scalar":
        assert chosen["blas_kernels"].lower() not in NARROW, chosen
        assert info(**{VARIABLE: "Nehalem"})["blas_kernels"].lower() == "nehalem"


main()
