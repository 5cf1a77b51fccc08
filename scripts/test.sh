#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that belongs to a change: the layer check, the whole
# suite optimised, and the concurrent layers under AddressSanitizer with UBSan and under ThreadSanitizer.
# What takes longer is in scripts/test_long.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
jobs=$(nproc)

step() { printf '\n== %s (%d s so far)\n' "$1" "$((SECONDS - began))"; }

step "setup"
scripts/setup.sh --python

step "layers"
scripts/check_layers.py

step "build, optimised"
cmake --preset release >/dev/null
cmake --build --preset release --parallel "$jobs"

step "every test, optimised"
ctest --preset release --parallel 1

# The arithmetic and model suites are single-threaded by design or covered above; what races or
# frees too early would be in these.
for preset in asan tsan; do
    step "build, $preset"
    cmake --preset "$preset" >/dev/null
    cmake --build --preset "$preset" --parallel "$jobs" --target nvme_tests cpu_optim_tests cuda_tests offload_tests
    step "the lower layers, $preset"
    TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp" \
        ctest --preset "$preset" --parallel 1 --tests-regex '^(nvme|cpu_optim|cuda|offload):'
done

step "done"
echo "scripts/test.sh: all tests passed in $((SECONDS - began)) s"
