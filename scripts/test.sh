#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that belongs to a change: the layer check, the whole
# suite optimised, and the concurrent layers under AddressSanitizer with UBSan and under ThreadSanitizer.
# What takes longer is in scripts/test_long.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
began=$SECONDS
jobs=$(nproc)
# Many tests start programs of several threads.
tests_at_once=$((jobs < 4 ? jobs : 4))

step() { printf '\n== %s (%d s so far)\n' "$1" "$((SECONDS - began))"; }

step "setup"
scripts/setup.sh --cuda --venv
# Fetching torch takes minutes in which the processor has little to do.
mkdir -p build
scripts/setup.sh --python >build/setup-python.log 2>&1 &
fetching_torch=$!

step "layers"
scripts/check_layers.py

# The wheel compiles what the release build has compiled, and the sanitizers' builds its kernels: once is enough.
export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_NOHASHDIR=1
# Without this it would not keep what is compiled with precompiled headers.
export CCACHE_SLOPPINESS=pch_defines,time_macros

step "build, optimised"
cmake --preset release >/dev/null
cmake --build --preset release --parallel "$jobs"

step "python package"
wait "$fetching_torch" || { cat build/setup-python.log; exit 1; }
scripts/python_package.sh --tests

step "every test, optimised"
ctest --preset release --parallel "$tests_at_once"

# What races or frees too early would be in the layers with threads and buffers. The arithmetic has neither: its
# tests put guard pages around every run, and the long tests have it under sanitizers too.
declare -A suites=([asan]="nvme cuda offload" [tsan]="nvme cuda offload")
# Hundreds of whole runs, minutes each under a sanitizer; scripts/test_long.sh has them.
whole_runs="every optimizer|killed at any point|moves between its commits|instruction sets|of its own weights gives"
whole_runs+="|an average has the same bits|clipped by value or tensor|lifecycle: fifty engines|lifecycle: three hundred"
whole_runs+="|layerwise: lossy|client average: it has the bits"
whole_runs+="|a drive that fails them costs"
whole_runs+="|placement|power cut|budget|forty million|room is judged|one hash whatever|resumed in other memory"
# What one thread does after another, or what the file system does: nothing in it could race. Or work that several of
# oneTBB's threads share, whose hand-over ThreadSanitizer does not see.
one_thread="adafactor|storage_place|storage_tuner|storage_bench|ten thousand|the first failure|extent map|commit log|lossy_tensor"
one_thread+="|client average|damage|dead runs|known again|keeps the first format|does not go on|never committed|where they live"
one_thread+="|run moves to the drives|layerwise: client|layerwise: training has|layerwise: training with"
declare -A left_out=([asan]="$whole_runs" [tsan]="$whole_runs|$one_thread")
for preset in asan tsan; do
    step "build, $preset"
    cmake --preset "$preset" >/dev/null
    read -ra names <<<"${suites[$preset]}"
    cmake --build --preset "$preset" --parallel "$jobs" --target "${names[@]/%/_tests}"
    step "the lower layers, $preset"
    TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp" \
        ctest --preset "$preset" --parallel "$tests_at_once" --tests-regex "^($(IFS='|'; echo "${names[*]}")):" \
        --exclude-regex "${left_out[$preset]}"
done

step "done"
echo "scripts/test.sh: all tests passed in $((SECONDS - began)) s"
