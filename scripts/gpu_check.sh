#!/usr/bin/env bash
# Checks and measures the CUDA device on a machine with a GPU, in at most ten minutes and without a network, and writes
# one JSON: what the machine has, the kernels' tests on the device (the optimizers' against the processor's bits, the
# trainer's against the double-precision reference), the link's rates, a short training run, and a step of a model whose
# layers are those of a 7B model under a cap on device memory.
#
#   scripts/gpu_check.sh [--built] [--device cuda:N] [--out FILE] [--work FOLDER]
#
#     --built    what $SPILLWAY_BUILD (build/release if not set) holds is used as it is; nothing is built
#     --device   cuda:0 if not given
#     --out      build/gpu_check.json if not given
#     --work     a folder on the drive to use; build if not given. All goes to FOLDER/spillway-gpu-check, replaced
#     --rehearse LIBRARY   all of it in little, on a library that looks like the CUDA driver; builds nothing
#
# Exits 0 if every part passed, 1 if one failed or it ended early, 77 if there is nothing to check. However it ends, the
# JSON says how far it came and its last line is the outcome.
set -euo pipefail
device=cuda:0 out= folder= rehearse= built=
usage() { sed -n '2,19s/^# \{0,1\}//p' "$0"; }
while (($#)); do
    case $1 in
        --built) built=yes; shift; continue ;;
        -h | --help) usage; exit 0 ;;
        --device | --out | --work | --rehearse) (($# > 1)) || { usage; exit 2; } ;;
        *) usage; exit 2 ;;
    esac
    case $1 in
        --device) device=$2 ;;
        --out) out=$(realpath -m "$2") ;;
        --work) folder=$(realpath -m "$2") ;;
        --rehearse) rehearse=$(realpath -m "$2") built=yes ;;
    esac
    shift 2
done
[[ -z ${SPILLWAY_BUILD:-} ]] || SPILLWAY_BUILD=$(realpath -m "$SPILLWAY_BUILD")
cd "$(dirname "$0")/.."
: "${out:=$PWD/build/gpu_check.json}" "${folder:=$PWD/build}"
build=$PWD/build/release
[[ -z $built ]] || build=${SPILLWAY_BUILD:-$build}
work=$folder/spillway-gpu-check
began=$SECONDS

# Writes the JSON of what there is by now, and says the outcome.
why='a command of the script failed'
finish() {
    local code=$?
    trap - EXIT
    command -v python3 >/dev/null || {
        mkdir -p "$(dirname "$out")"
        printf '{"passed": false, "ended_early": "there is no python3"}\n' >"$out"
        echo "gpu_check: there is no python3, which it needs; $out"
        exit 1
    }
    python3 scripts/gpu_check_report.py "$work/parts" "$device" "$((SECONDS - began))" "$out" "$why" "$code" || code=$?
    exit "$code"
}
trap finish EXIT
stop() { why=$2; exit "$1"; }

rm -rf "$work"
mkdir -p "$work/parts" "$work/drive"

longest_s=590
if [[ -z $rehearse ]]; then
    tests='[gpu]'
    link=(--size 1GiB)
    short=(--model gpt2:6x384x6 --context 256 --batch 16 --seq 256 --lr 2e-3 --warmup 20 --budget 45s)
    step=(--model gpt2:4x4096x32 --vocab 32000 --context 1024 --batch 4 --seq 1024 --device-mem 8GiB --steps 3)
else
    mkdir "$work/lib"
    ln -s "$rehearse" "$work/lib/libcuda.so.1"
    export LD_LIBRARY_PATH=$work/lib
    tests='[gpu][quick]'
    link=(--size 1MiB --block 64KiB --passes 2)
    short=(--model gpt2:1x16x2 --context 8 --batch 2 --seq 8 --lr 2e-3 --warmup 1 --steps 2)
    step=(--model gpt2:1x32x2 --context 8 --batch 2 --seq 8 --device-mem 16MiB --steps 1)
fi

# part NAME SECONDS COMMAND...: the command's output goes to NAME.log, how it ended to NAME.end. What takes longer than
# its seconds, or than is left of the whole, has failed.
part() {
    local name=$1 limit=$2 left=$((longest_s - (SECONDS - began))) from=$SECONDS code=0
    shift 2
    ((limit < left)) || limit=$((left > 1 ? left : 1))
    printf '== %s\n' "$name"
    timeout --kill-after=10 "$limit" "$@" >"$work/parts/$name.log" 2>&1 || code=$?
    printf '%d %d\n' "$code" "$((SECONDS - from))" >"$work/parts/$name.end"
    ((code == 0)) || { echo "   failed with $code:"; tail -n 15 "$work/parts/$name.log" | sed 's/^/   /'; }
}
passed() { [[ $(<"$work/parts/$1.end") == "0 "* ]]; }
json_of() { printf '%s/parts/%s.json' "$work" "$1"; }

if [[ -z $built ]]; then
    # Without a network nothing can be installed; what is there may be enough.
    part setup 60 bash -c 'scripts/setup.sh --cuda || true'
    part build 300 bash -c 'cmake --preset release &&
        cmake --build build/release --parallel "$(nproc)" --target spillway cuda_tests cuda_trainer_tests'
    passed build || stop 1 'the build failed'
fi
spillway=$build/spillway
for program in spillway cuda_tests cuda_trainer_tests; do
    [[ -x $build/$program ]] || stop 1 "$build/$program is not there: build it, or leave --built out"
done
part info 60 "$spillway" info --json "$(json_of info)"
passed info || stop 1 "'spillway info' failed"
refusal=$(python3 scripts/gpu_check_report.py --refusal "$(json_of info)" "$device")
[[ -z $refusal ]] || stop 77 "nothing to check: $refusal"

export SPILLWAY_TEST_DEVICE=$device
part optimizer_kernels 120 "$build/cuda_tests" "$tests" --warn NoTests
part trainer_kernels 120 "$build/cuda_trainer_tests" "$tests" --warn NoTests
part link 60 "$spillway" bench link --device "$device" "${link[@]}" --json "$(json_of link)"
both=(--data "$PWD/engine/data/kjv.txt" --device "$device" --profile "$work/profile.json")
part train 110 "$spillway" train "${short[@]}" "${both[@]}" --nvme "$work/drive" --out "$work/run" --json "$(json_of train)"
rm -rf "$work/run"
part step_7b 150 "$spillway" train "${step[@]}" "${both[@]}" --durable off --out "$work/step" --json "$(json_of step_7b)"
rm -rf "$work/step" "$work/drive"
why=
