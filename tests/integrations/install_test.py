#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""What `cmake --install` puts into an empty prefix is enough to build and run the C++ and C examples elsewhere.

    install_test.py CMAKE BUILD_FOLDER C_COMPILER CXX_COMPILER
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CMAKE, BUILD, CC, CXX = sys.argv[1:]


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, f"exit {done.returncode}: {' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source, folder, prefix, *options):
    """Configures and builds a project that knows nothing but the prefix."""
    run(CMAKE, "-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}", "-DCMAKE_BUILD_TYPE=Release", *options)
    run(CMAKE, "--build", folder, "--parallel", 2)


def install(prefix):
    for component in ("spillway_program", "spillway_runtime", "spillway_develop"):
        run(CMAKE, "--install", BUILD, "--prefix", prefix, "--component", component)
    assert "spillway" in run(prefix / "bin" / "spillway", "--version")


def check_headers(prefix, folder):
    """Public headers only, and each finds what it includes inside the prefix."""
    include = prefix / "include" / "spillway"
    headers = sorted(str(path.relative_to(include)) for path in include.rglob("*.h"))
    assert "offload/tensor_optimizer.h" in headers and "integrations/c/spillway.h" in headers, headers
    stray = [str(path) for path in include.rglob("*") if path.is_file() and path.suffix != ".h"]
    private = [header for header in headers if "detail/" in header or "python" in header]
    assert not stray and not private, (stray, private)
    unit = folder / "all_headers.cpp"
    unit.write_text("".join(f'#include "{header}"\n' for header in headers))
    run(CXX, "-std=c++20", f"-I{include}", "-fsyntax-only", unit)
    return len(headers)


def library_folder(prefix):
    return next(prefix.rglob("libspillway_c.so")).parent


def check_c_without_cmake(prefix, folder):
    """The C example by pkg-config, in a compiler call as C programmers write it."""
    library = library_folder(prefix)
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "spillway_c", env=environment).split()
    source = ROOT / "integrations" / "c" / "example.c"
    run(CC, "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", source, "-o", folder / "c_example", *flags)
    drive = folder / "c_drive"
    drive.mkdir()
    out = run(folder / "c_example", drive, env={**os.environ, "LD_LIBRARY_PATH": str(library)})
    assert "bit-equal" in out, out


def check_cpp_example(prefix, folder):
    build(ROOT / "integrations" / "cpp" / "example", folder / "example", prefix)
    drive = folder / "cpp_drive"
    drive.mkdir()
    out = run(folder / "example" / "example", drive)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", out)]
    assert len(losses) == 24 and losses[:12] == losses[12:], out
    assert losses[11] < 0.6 * losses[0], losses
    assert "resumed at step 5" in out and "bit-equal" in out, out
    assert not re.search(r"drive: 0 of", out) and "state on the drive" in out, out
    assert (drive / "image.safetensors").stat().st_size > 4 * 3 * 640 * 512


def check_consumer(prefix, folder):
    build(ROOT / "tests" / "integrations" / "consumer", folder / "consumer", prefix,
          f"-DC_EXAMPLE={ROOT / 'integrations' / 'c' / 'example.c'}")
    assert run(folder / "consumer" / "cpp_consumer") == "weights 1.5 1.5\n"
    usage = subprocess.run([folder / "consumer" / "c_consumer"], capture_output=True, text=True, timeout=60)
    assert usage.returncode == 2 and "usage" in usage.stderr, usage  # it finds its library


def main():
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix="spillway-test-") as name:
        folder = pathlib.Path(name)
        prefix = folder / "prefix"
        install(prefix)
        count = check_headers(prefix, folder)
        check_cpp_example(prefix, folder)
        check_consumer(prefix, folder)
        check_c_without_cmake(prefix, folder)
    print(f"{count} headers, the C++ example, the C example and a least client, from an installed prefix")


main()
